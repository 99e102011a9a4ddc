package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/check"
	"stoker.io/stoker/hooks/output"
)

// shortUsage replaces kubectl's global flags in the help of each command, which would bury its own flags, by a reference to the
// command `options`.
var shortUsage = strings.NewReplacer(
	"{{if .HasAvailableLocalFlags}}", "{{if and .HasParent .HasAvailableLocalFlags}}",
	"Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}", `Use "{{.Root.DisplayName}} options" for the flags of all commands.`,
)

func newOptionsCommand(c *cli) *cobra.Command {
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

func newVersionCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this command",
		Long: `Print the version of this command.

With --check, also the versions of the parts in the cluster and of the agents, and whether they are supported together: parts within one minor
version, agents up to four older. The exit code is 1 if one is too old.`,
		Example: `  stoker version -o json
  stoker version --check -A`,
		Args: cobra.NoArgs,
	}
	format := output.AddFlag(command.Flags())
	compare := command.Flags().Bool("check", false, "compare with the versions in the cluster")
	all := command.Flags().BoolP("all-namespaces", "A", false, "with --check, the agents of all namespaces")
	command.RunE = func(command *cobra.Command, _ []string) error {
		if *compare {
			return c.compareVersions(command.Context(), *all, *format)
		}
		r := output.Result{
			Data:  map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH},
			Names: []string{version}, Text: func(w io.Writer) { fmt.Fprintln(w, version) },
		}
		return r.Print(c.stdout, *format)
	}
	return command
}

// compareVersions prints the versions of all parts. It returns an error if a part is too old.
func (c *cli) compareVersions(ctx context.Context, all bool, format string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	if all {
		p.namespace = ""
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	parts, err := check.Versions(ctx, p.Clients, p.namespace, version)
	if err != nil {
		return p.explain("", err)
	}
	r, old := output.Result{Data: parts, Head: []string{"PART", "VERSION", "NAMESPACE", "PROBLEM"}}, 0
	for _, part := range parts {
		name := part.Name
		if part.Count > 0 {
			name = output.Count(part.Count, "agent")
		}
		if strings.HasPrefix(part.Problem, "too old") {
			old++
		}
		r.Names = append(r.Names, part.Version)
		r.Rows = append(r.Rows, []string{name, part.Version, part.Namespace, part.Problem})
	}
	if err := r.Print(c.stdout, format); err != nil {
		return err
	}
	if old > 0 {
		return fmt.Errorf("%s of Stoker too old", output.Count(old, "part"))
	}
	return nil
}

// explainArgs returns a check of the number of arguments that accepts what check accepts. Its errors show the form of the
// command. missing is what the first argument is, such as the name of a GatewaySync.
func explainArgs(check cobra.PositionalArgs, missing string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch err := check(command, args); {
		case err == nil:
			return nil
		case len(args) == 0:
			return fmt.Errorf("%s: missing the %s", command.Use, missing)
		}
		return fmt.Errorf("%s: too many arguments", command.Use)
	}
}

// documentationBase is the URL of the repository on the web, without a version.
const documentationBase = "https://github.com/stoker-io/stoker/blob/"

var releaseVersion = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)

// documentationURL returns the URL of a document, such as docs/how-to/troubleshooting.md#paused, in the version of this program.
func documentationURL(document string) string {
	if m := releaseVersion.FindStringSubmatch(version); m != nil {
		return documentationBase + "v" + m[1] + "/" + document
	}
	return documentationBase + "main/" + document
}

// troubleshootingLink returns a line break and the URL of the documentation of a reason, or "" if the reason has none.
func troubleshootingLink(reason v1alpha1.Reason) string {
	if !reason.Known() {
		return ""
	}
	return "\nWhat to do: " + documentationURL("docs/how-to/troubleshooting.md#"+strings.ToLower(string(reason)))
}

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
