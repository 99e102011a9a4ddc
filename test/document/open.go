package document

import (
	"flag"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

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
