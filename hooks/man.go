package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the hidden command that writes the man pages that a release ships.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a manual page for each command",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			root := command.Root()
			root.DisableAutoGenTag = true // two builds of a release are equal; SOURCE_DATE_EPOCH is the date of the pages
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "stoker " + version, Manual: "Stoker"}, args[0])
		},
	}
}
