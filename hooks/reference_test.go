package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

const reference = "../docs/reference/cli.md"

const head = `# The command line

<!-- Generated from the commands by ` + "`go test ./hooks -run Reference -update`" + `. -->

%s

- Data goes to stdout; messages go to stderr. On a terminal ` + "`wait`" + ` prints its progress; otherwise it prints only the result.
- Repeating a command has no further effect. A sender (` + "`--by`" + `) can identify its request with ` + "`--id`" + `, so that a retried Job or promotion
  counts once. Stoker remembers the last eight ids of each sender. Promotions of Kargo are ordered by their names; an older one ends with 4.
- Requests and approvals are annotations, which Argo CD does not revert.
- The ClusterRole ` + "`stoker-setter`" + ` grants the rights to request and to wait. The help of a command names any further rights.

| exit code | |
|---|---|
| 0 | success |
| 1 | failed: a gateway reports an error that a retry does not fix, the API server rejected the request, an object cannot be read, or there is nothing to approve, retry or roll back |
| 2 | usage: the arguments are wrong, or the ref is malformed |
| 3 | timeout |
| 4 | superseded: another ref was requested in the meantime |
| 5 | forbidden by the API server or by spec.git.allowedRefs |
| 6 | held: syncing is paused, or the remaining gateways wait for a user, a policy or a maintenance window |
| 7 | interrupted by a signal, or the API server did not answer (without a terminal: for 30 seconds; views: at once); a retry may help |

## Completion

` + "`stoker completion bash`" + ` (or zsh, fish, powershell) prints a script that completes commands, flags, and names from the cluster; its
` + "`--help`" + ` explains how to install it. For ` + "`kubectl stoker`" + `, save this script as the executable ` + "`kubectl_complete-stoker`" + ` on the PATH:

` + "```sh" + `
#!/bin/sh
exec stoker __complete "$@"
` + "```" + `
`

// page generates the reference page from the commands.
func page(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, head, "`stoker` requests refs and shows the state of gateways, also as `kubectl stoker` ([installation](../how-to/installation.md#the-command-line)).")
	all := commands(root)
	several := inSeveral(commands(newCLI(io.Discard, io.Discard).root("stoker"))) // of a second root, because inSeveral changes usage lines
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s\n\n", c.CommandPath())
		fmt.Fprintf(&b, "%s\n", asCode(cmp.Or(c.Long, c.Short+".")))
		fmt.Fprintf(&b, "\n```sh\n%s\n```\n", c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindent(c.Example))
		}
		own, others := split(c.NonInheritedFlags(), several)
		table(&b, own)
		if list := names(others); list != "" {
			fmt.Fprintf(&b, "\n[Also](#flags-of-several-commands) %s.\n", list)
		}
	}
	fmt.Fprintf(&b, "\n## Flags of several commands\n")
	table(&b, several)
	b.WriteString("\n## Flags of all commands\n\n`stoker options` lists the flags of kubectl that all commands take, such as `--namespace`, `--context` and `--as`.\n")
	return b.String()
}

func commands(root *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range root.Commands() {
		if c.Name() != "help" && c.Name() != "completion" && !c.Hidden {
			list = append(append(list, c), commands(c)...)
		}
	}
	return list
}

// inSeveral returns the flags that more than one command has with the same default and the same text.
func inSeveral(all []*cobra.Command) *pflag.FlagSet {
	seen, several := map[string]bool{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, c := range all {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if seen[keyOf(f)] && several.Lookup(f.Name) == nil {
				several.AddFlag(f)
			}
			seen[keyOf(f)] = true
		})
	}
	return several
}

func keyOf(f *pflag.Flag) string { return f.Name + "\n" + f.DefValue + "\n" + f.Usage }

// split returns the flags that are not among several, and those that are.
func split(flags, several *pflag.FlagSet) (own, others *pflag.FlagSet) {
	own, others = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if s := several.Lookup(f.Name); s != nil && keyOf(s) == keyOf(f) {
			others.AddFlag(f)
		} else {
			own.AddFlag(f)
		}
	})
	return own, others
}

// names lists the flags of a set, without their shorthands.
func names(flags *pflag.FlagSet) string {
	var list []string
	visible(flags, func(f *pflag.Flag, _ string) { list = append(list, "`--"+f.Name+"`") })
	return strings.Join(list, ", ")
}

// visible calls a function for each flag that a user can see, with its name and shorthand as code.
func visible(flags *pflag.FlagSet, do func(f *pflag.Flag, name string)) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		do(f, name)
	})
}

var (
	flagWord  = regexp.MustCompile(`(--[a-z-]+|spec(\.[a-zA-Z]+)+)`)
	angleWord = strings.NewReplacer("<", "&lt;", "|", `\|`)
)

func asCode(s string) string { return flagWord.ReplaceAllString(s, "`$1`") }

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

func table(w io.Writer, flags *pflag.FlagSet) {
	var lines []string
	visible(flags, func(f *pflag.Flag, name string) {
		standard := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			standard = "`" + f.DefValue + "`"
		}
		lines = append(lines, fmt.Sprintf("| %s | %s | %s |", name, standard, angleWord.Replace(f.Usage)))
	})
	if len(lines) > 0 {
		fmt.Fprintf(w, "\n| flag | default | |\n|---|---|---|\n%s\n", strings.Join(lines, "\n"))
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	want := page(newCLI(io.Discard, io.Discard).root("stoker"))
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(want), 0o644))
	}
	have, err := os.ReadFile(reference)
	require.NoError(t, err)
	assert.Equal(t, want, string(have), "run go test ./hooks -update")
}

func TestCommandsHaveShortTextAndExample(t *testing.T) {
	root := newCLI(io.Discard, io.Discard).root("stoker")
	for _, c := range commands(root) {
		assert.NotEmpty(t, c.Short, c.Name())
		assert.False(t, strings.HasSuffix(c.Short, "."), "%s: the short text must not end with a period", c.Name())
		assert.Contains(t, c.Example, c.CommandPath(), c.Name())
		for line := range strings.Lines(c.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " > ")
			if rest, ok := strings.CutPrefix(line, "stoker "); ok {
				args := strings.Fields(strings.ReplaceAll(rest, `"`, ""))
				found, left, err := root.Find(args)
				require.NoError(t, err, line)
				require.NotSame(t, root, found, line)
				require.NoError(t, found.ParseFlags(left), line)
				assert.NoError(t, found.ValidateArgs(found.Flags().Args()), line)
			} else {
				assert.True(t, line == "" || strings.HasPrefix(line, "#"), line)
			}
		}
	}
}

// No test runs commands that the documents mention in prose. They and their flags must exist.
func TestCommandsInDocumentsExist(t *testing.T) {
	pages, err := filepath.Glob("../docs/*/*.md")
	require.NoError(t, err)
	more, err := filepath.Glob("../examples/*/README.md")
	require.NoError(t, err)
	span := regexp.MustCompile("`(?:stoker|kubectl stoker) ([a-z][^`]*)`")
	seen := 0
	for _, page := range append(append(pages, more...), "../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range span.FindAllStringSubmatch(string(text), -1) {
			root := newCLI(io.Discard, io.Discard).root("stoker")
			root.InitDefaultCompletionCmd("bash")
			found, left, err := root.Find(strings.Fields(m[1]))
			require.NoError(t, err, "%s: %s", page, m[0])
			require.NotSame(t, root, found, "%s: %s", page, m[0])
			assert.NoError(t, found.ParseFlags(left), "%s: %s", page, m[0])
			seen++
		}
	}
	assert.Greater(t, seen, 20)
}

// A failed wait links to the section of its reason.
func TestReasonsHaveTroubleshootingAnchors(t *testing.T) {
	doc, err := os.ReadFile("../docs/how-to/troubleshooting.md")
	require.NoError(t, err)
	for _, r := range v1alpha1.Reasons {
		assert.Contains(t, string(doc), "\n### "+string(r.Reason)+"\n")
		assert.Contains(t, troubleshootingLink(r.Reason), "#"+strings.ToLower(string(r.Reason)))
	}
	assert.Empty(t, troubleshootingLink("Unheard"))
}

// The reader of a Job's log has no checkout, so links must name the version that runs.
func TestHelpLinksNameTheVersion(t *testing.T) {
	was := version
	t.Cleanup(func() { version = was })
	for v, want := range map[string]string{"1.2.3": "v1.2.3", "v1.2.3": "v1.2.3", "dev": "main", "v1.2.3-4-gabcdef0": "main", "v1.2.3-dirty": "main", "1234567": "main"} {
		t.Run(v, func(t *testing.T) {
			version = v
			assert.Equal(t, "\nWhat to do: https://github.com/stoker-io/stoker/blob/"+want+"/docs/how-to/troubleshooting.md#paused", troubleshootingLink(v1alpha1.ReasonPaused))
		})
	}
}

func TestHelpOmitsGlobalFlags(t *testing.T) {
	for _, line := range []string{"--help", "set-ref --help", "check --help"} {
		t.Run(line, func(t *testing.T) {
			var said strings.Builder
			require.Equal(t, exit.Done, run(t.Context(), append([]string{"kubectl-stoker"}, strings.Fields(line)...), &said, &said))
			assert.NotContains(t, said.String(), "--kubeconfig")
			assert.Equal(t, line != "--help", strings.Contains(said.String(), "\n  -o, --output string"))
			assert.Equal(t, line != "--help", strings.Contains(said.String(), `Use "kubectl stoker options" for the flags of all commands.`))
		})
	}
	var said strings.Builder
	require.Equal(t, exit.Done, run(t.Context(), []string{"stoker", "options"}, &said, &said))
	assert.Contains(t, said.String(), "--kubeconfig string")
}

// The command must reject these lines without an API server and a kubeconfig.
func TestUsageErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "nothing"))
	for line, want := range map[string]string{
		"set-ref":                  "set-ref NAME [REF]: missing the name of a GatewaySync\nSee 'stoker set-ref --help'\n",
		"config apply":             "apply NAME: missing the name of a ConfigSync\nSee 'stoker config apply --help'\n",
		"config prune":             "prune NAME: missing the name of a ConfigSync\nSee 'stoker config prune --help'\n",
		"config status a b":        "status [NAME]: too many arguments\nSee 'stoker config status --help'\n",
		"set-ref line v1 v2":       "set-ref NAME [REF]: too many arguments\nSee 'stoker set-ref --help'\n",
		"push":                     "push oci://REGISTRY/PATH:TAG: missing the address of an artifact\nSee 'stoker push --help'\n",
		"check line":               "check: too many arguments\nSee 'stoker check --help'\n",
		"wait line --patience":     "unknown flag: --patience\nSee 'stoker wait --help'\n",
		"ste-ref":                  "unknown command \"ste-ref\"; did you mean set-ref?\nSee 'stoker --help'\n",
		"rollback line --to v1":    "\"v1\" is not a commit: write its first 7 digits or more\n",
		"rollback line --to abcde": "\"abcde\" is not a commit: write its first 7 digits or more\n",
	} {
		t.Run(line, func(t *testing.T) {
			var said strings.Builder
			assert.Equal(t, exit.Usage, run(t.Context(), append([]string{"stoker"}, strings.Fields(line)...), &said, &said))
			assert.Equal(t, "stoker: "+want, said.String())
		})
	}
}
