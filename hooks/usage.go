package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// brief removes kubectl's global flags from the help of each command, where they would bury its own flags, and refers to the
// command `options`.
var brief = strings.NewReplacer(
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
			_, err := fmt.Fprint(c.out, command.Root().PersistentFlags().FlagUsages())
			return err
		},
	}
}

// counts wraps inner with messages that show the form of the command.
func counts(inner cobra.PositionalArgs) cobra.PositionalArgs {
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
