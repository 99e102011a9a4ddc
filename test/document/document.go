// Package document finds the commands in the project's documents, assigns them to tests, and runs them as a reader does. The
// ledger says which test runs which commands. A test gets its commands only from there, so that none can be claimed and left
// out.
//
//	func TestTheCommandsOfThePageWork(t *testing.T) {
//		lines := document.Open(t)
//		shell := document.NewShell(t, document.Root(t), map[string]string{"kubectl": kubectl}, "KUBECONFIG="+kubeconfig)
//		for c := range lines.Of("docs/page.md") {
//			shell.Type(t, c.Text)
//		}
//	}
package document

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Command is a command that a reader types.
type Command struct {
	Document, Heading string
	Line              int // where it begins, from 1
	Text              string
}

// Program returns the first word of the command.
func (c Command) Program() string { return program(c.Text) }

// programs are the programs that documents call. In a block without a language, a line that starts with one of them is a
// command; other lines are output or drawings.
var programs = []string{"agent", "argocd", "bash", "cat", "chmod", "cp", "curl", "docker", "echo", "exec", "git", "go", "gpg", "helm", "injector", "jq", "kind", "kubectl",
	"kubectl-stoker", "make", "mkdir", "mv", "openssl", "podman", "receiver", "rm", "sh", "ssh", "ssh-keygen", "ssh-keyscan", "stoker", "sudo", "tar"}

var (
	assignment = regexp.MustCompile(`^[A-Z][A-Z_]*=\S`)
	numbered   = regexp.MustCompile(`^(?:[-*]|\d+\.) `)
	title      = regexp.MustCompile(`^#{1,6} +(.*?)\s*$`)
)

func program(line string) string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

func isCommand(line string) bool {
	name := program(line)
	return slices.Contains(programs, strings.TrimPrefix(name, "bin/")) || name == "for" || assignment.MatchString(line)
}

// In returns the commands of a document: those of sh blocks, and those of fenced or indented blocks without a language. It
// skips synopses, which contain [flags].
func In(name, text string) []Command {
	var found []Command
	heading, fence := "", ""
	margin := 0       // indentation of a list's text; code in it has four more
	var open *Command // a command that continues on the next line
	for i, line := range strings.Split(text, "\n") {
		typed := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if strings.HasPrefix(typed, "```") {
			if fence != "" {
				fence = ""
			} else {
				fence = strings.TrimSpace("``` " + strings.TrimPrefix(typed, "```"))
			}
			open = nil
			continue
		}
		code, sh := fence == "```" || fence == "" && indent >= margin+4, fence == "``` sh"
		switch {
		case open != nil && typed != "":
			if strings.HasSuffix(open.Text, "\\") {
				open.Text = strings.TrimSpace(strings.TrimSuffix(open.Text, "\\")) + " " + typed
			} else {
				open.Text += "\n" + typed
			}
		case typed == "" || strings.HasPrefix(typed, "#") && (code || sh):
			continue
		case sh || code && isCommand(typed):
			found = append(found, Command{Document: name, Heading: heading, Line: i + 1, Text: typed})
			open = &found[len(found)-1]
		case fence == "":
			if m := title.FindStringSubmatch(line); m != nil {
				heading, margin = m[1], 0
			} else if mark := numbered.FindString(strings.TrimLeft(line, " ")); mark != "" {
				margin = indent + len(mark)
			} else if indent == 0 {
				margin = 0
			}
			continue
		default:
			continue
		}
		if loop := strings.HasPrefix(open.Text, "for ") && !strings.HasSuffix(open.Text, "done"); !loop && !strings.HasSuffix(open.Text, "\\") {
			open = nil
		}
	}
	return slices.DeleteFunc(found, func(c Command) bool { return strings.Contains(c.Text, "[flags]") })
}

// Root returns the root directory of the main module, also for a test of a nested module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module stoker.io/stoker\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no module stoker.io/stoker from the working directory upwards")
		}
	}
}

// Read returns the commands of a document.
func Read(t testing.TB, name string) []Command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return In(name, string(text))
}
