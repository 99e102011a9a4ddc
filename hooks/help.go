package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
)

// shortUsage removes kubectl's global flags from the help of each command, where they would bury its own flags, and refers to the
// command `options`.
var shortUsage = strings.NewReplacer(
	"{{if .HasAvailableLocalFlags}}", "{{if and .HasParent .HasAvailableLocalFlags}}",
	"Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}", `Use "{{.Root.DisplayName}} options" for the flags of all commands.`,
)

func (c *cli) options() *cobra.Command {
	return &cobra.Command{
		Use:     "options",
		Short:   "List the flags of kubectl that all commands take",
		Example: `  stoker options`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(c.stdout, command.Root().PersistentFlags().FlagUsages())
			return err
		},
	}
}

// explainArgs wraps inner with messages that show the form of the command.
func explainArgs(inner cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		err := inner(command, args)
		switch {
		case err == nil:
			return nil
		case len(args) == 0:
			return fmt.Errorf("%s: missing the name of a GatewaySync", command.Use)
		}
		return fmt.Errorf("%s: too many arguments", command.Use)
	}
}

// documentationBase is the address of the documentation, for users without a checkout.
const documentationBase = "https://github.com/stoker-io/stoker/blob/"

var releaseVersion = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)

// documentationURL returns the address of a document, such as docs/how-to/troubleshooting.md#paused, in the version of this binary.
func documentationURL(document string) string {
	if m := releaseVersion.FindStringSubmatch(version); m != nil {
		return documentationBase + "v" + m[1] + "/" + document
	}
	return documentationBase + "main/" + document
}

// troubleshootingLink returns a line with the address of the documentation of a reason.
func troubleshootingLink(reason v1alpha1.Reason) string {
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			return "\nWhat to do: " + documentationURL("docs/how-to/troubleshooting.md#"+strings.ToLower(string(reason)))
		}
	}
	return ""
}
