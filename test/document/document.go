// Package document finds the commands in the project's documents, assigns them to tests, and runs them as a reader would. The
// Ledger (ledger.go) assigns each command to one test. Open returns the commands of the calling test, and fails the test if it
// does not run all of them.
//
//	func TestPageCommands(t *testing.T) {
//		commands := document.Open(t)
//		shell := document.NewShell(t, document.Root(t), map[string]string{"kubectl": kubectl}, "KUBECONFIG="+kubeconfig)
//		for c := range commands.Of("docs/page.md") {
//			shell.Type(t, c.Text)
//		}
//	}
package document

import (
	"flag"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"stoker.io/stoker/test/module"
)

// Command is a command that a reader types.
type Command struct {
	Document, Heading string
	Line              int // where it begins, from 1
	Text              string
}

// Program returns the first word of the command.
func (c Command) Program() string { return firstWord(c.Text) }

// programs are the programs that documents call.
var programs = []string{"agent", "argocd", "bash", "cat", "chmod", "cp", "curl", "docker", "echo", "exec", "git", "go", "gpg", "helm", "injector", "jq", "kind", "kubectl",
	"kubectl-stoker", "make", "mkdir", "mv", "openssl", "podman", "receiver", "rm", "sh", "ssh", "ssh-keygen", "ssh-keyscan", "stoker", "sudo", "tar"}

var (
	assignment  = regexp.MustCompile(`^[A-Z][A-Z_]*=\S`)
	assignOnly  = regexp.MustCompile(`^[A-Z][A-Z_]*=(?:\$\([^()]*\)|"[^"]*"|'[^']*'|[^\s"'();&|])+$`) // no command follows
	listItem    = regexp.MustCompile(`^(?:[-*]|\d+\.) `)
	headingLine = regexp.MustCompile(`^#{1,6} +(.*?)\s*$`)
)

func firstWord(line string) string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// isCommand reports whether a line looks like a command: it starts with one of the programs, with "for", or with an assignment
// to an upper-case variable.
func isCommand(line string) bool {
	word := firstWord(line)
	return slices.Contains(programs, strings.TrimPrefix(word, "bin/")) || word == "for" || assignment.MatchString(line)
}

// isComplete reports whether a command ends with the last line of its text. A backslash continues it, and a loop ends with
// done.
func isComplete(text string) bool {
	return !strings.HasSuffix(text, "\\") && (!strings.HasPrefix(text, "for ") || strings.HasSuffix(text, "done"))
}

// Parse returns the commands in the text of a document. In a fenced block with the language sh, each line is a command. In a
// fenced or indented block without a language, only lines that look like commands are; the others are output or drawings. Parse
// drops comment lines, and synopses, which contain [flags].
func Parse(name, text string) []Command {
	p := parser{document: name}
	for i, line := range strings.Split(text, "\n") {
		p.parseLine(i+1, line)
	}
	return slices.DeleteFunc(p.found, func(c Command) bool { return strings.Contains(c.Text, "[flags]") })
}

// parser reads a document line by line.
type parser struct {
	document, heading string
	inFence           bool
	language          string // of the fenced block; "" if it names none
	margin            int    // indentation of the text of the current list item, 0 outside of lists
	found             []Command
	continues         bool // the last command continues on the next line
}

func (p *parser) parseLine(number int, line string) {
	trimmed := strings.TrimSpace(line)
	if language, fence := strings.CutPrefix(trimmed, "```"); fence {
		p.inFence, p.language, p.continues = !p.inFence, strings.TrimSpace(language), false
		return
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	onlyCommands := p.inFence && p.language == "sh"
	mixed := p.inFence && p.language == "" || !p.inFence && indent >= p.margin+4 // commands and other lines
	switch {
	case trimmed == "":
	case p.continues:
		p.continueLast(trimmed)
	case (onlyCommands || mixed) && strings.HasPrefix(trimmed, "#"): // a comment
	case onlyCommands || mixed && isCommand(trimmed):
		p.found = append(p.found, Command{Document: p.document, Heading: p.heading, Line: number, Text: trimmed})
		p.continues = !isComplete(trimmed)
	case !p.inFence:
		p.parseProse(line, indent)
	}
}

// continueLast appends a line to the last command.
func (p *parser) continueLast(line string) {
	last := &p.found[len(p.found)-1]
	if text, ok := strings.CutSuffix(last.Text, "\\"); ok {
		last.Text = strings.TrimSpace(text) + " " + line
	} else {
		last.Text += "\n" + line
	}
	p.continues = !isComplete(last.Text)
}

// parseProse sets heading and margin from a line outside of blocks. A heading, and text that is not indented, end a list.
func (p *parser) parseProse(line string, indent int) {
	if m := headingLine.FindStringSubmatch(line); m != nil {
		p.heading, p.margin = m[1], 0
	} else if mark := listItem.FindString(strings.TrimLeft(line, " ")); mark != "" {
		p.margin = indent + len(mark)
	} else if indent == 0 {
		p.margin = 0
	}
}

// Root returns the root directory of the main module, also for a test of a nested module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := module.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Read reads and parses a document. name is its path from the root of the main module.
func Read(t testing.TB, name string) []Command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return Parse(name, string(text))
}

// Commands are the commands that the ledger assigns to one test. Of and Take hand them out and mark them as run.
type Commands struct {
	mu  sync.Mutex
	all []Command
	run map[Command]bool
}

// Open returns the commands that the ledger assigns to the calling test. The test fails at its end if it has not run all of
// them, unless it has failed, was skipped, or runs only some of its sub-tests.
func Open(t testing.TB) *Commands {
	t.Helper()
	root := Root(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := filepath.Rel(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	function, _, _ := strings.Cut(t.Name(), "/")
	test := filepath.ToSlash(pkg) + " " + function // as in the ledger
	l := &Commands{run: map[Command]bool{}}
	var documents []string
	for _, e := range Ledger {
		if e.Test != test || slices.Contains(documents, e.Document) {
			continue
		}
		documents = append(documents, e.Document)
		for _, c := range Read(t, e.Document) {
			if TestOf(c) == test {
				l.all = append(l.all, c)
			}
		}
	}
	if len(l.all) == 0 {
		t.Fatalf("the ledger assigns no command to %s", test)
	}
	t.Cleanup(func() {
		if pattern := flag.Lookup("test.run"); t.Failed() || t.Skipped() || pattern != nil && strings.Contains(pattern.Value.String(), "/") {
			return
		}
		for _, c := range l.notRun() {
			t.Errorf("%s:%d: %s did not run %s", c.Document, c.Line, test, c.Text)
		}
	})
	return l
}

func (l *Commands) notRun() []Command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(c Command) bool { return l.run[c] })
}

// Of iterates over the commands of a document in order, and marks each as run. If headings are given, it yields only the
// commands below them.
func (l *Commands) Of(document string, headings ...string) iter.Seq[Command] {
	return func(yield func(Command) bool) {
		for _, c := range l.all {
			if c.Document != document || len(headings) > 0 && !slices.Contains(headings, c.Heading) {
				continue
			}
			l.mu.Lock()
			l.run[c] = true
			l.mu.Unlock()
			if !yield(c) {
				return
			}
		}
	}
}

// Take returns the command of a document that begins with prefix, and marks it as run. It ends the test unless exactly one
// command matches.
func (l *Commands) Take(t testing.TB, document, prefix string) Command {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []Command
	for _, c := range l.all {
		if c.Document == document && strings.HasPrefix(c.Text, prefix) {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d commands of %s begin with %q among those that the ledger assigns to this test; want 1", len(found), document, prefix)
	}
	l.run[found[0]] = true
	return found[0]
}
