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

// Lines are the commands that the ledger assigns to one test.
type Lines struct {
	mu    sync.Mutex
	all   []Command
	typed map[Command]bool
}

// Open returns the commands of the calling test. The test fails at its end if it has not run all of them.
func Open(t testing.TB) *Lines {
	t.Helper()
	root := Root(t)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	room, err := filepath.Rel(root, here)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	me := filepath.ToSlash(room) + " " + name
	l := &Lines{typed: map[Command]bool{}}
	var seen []string
	for _, e := range Ledger {
		if e.Test != me || slices.Contains(seen, e.Document) {
			continue
		}
		seen = append(seen, e.Document)
		for _, c := range Read(t, e.Document) {
			if Who(c) == me {
				l.all = append(l.all, c)
			}
		}
	}
	if len(l.all) == 0 {
		t.Fatalf("the ledger gives no command to %s", me)
	}
	t.Cleanup(func() {
		if part := flag.Lookup("test.run"); t.Failed() || t.Skipped() || part != nil && strings.Contains(part.Value.String(), "/") {
			return
		}
		for _, c := range l.left() {
			t.Errorf("%s:%d: nobody typed %s", c.Document, c.Line, c.Text)
		}
	})
	return l
}

func (l *Lines) left() []Command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(c Command) bool { return l.typed[c] })
}

// Of iterates over the commands of a document, or of some of its headings, in order. It marks each as run.
func (l *Lines) Of(document string, headings ...string) iter.Seq[Command] {
	return func(yield func(Command) bool) {
		for _, c := range l.all {
			if c.Document != document || len(headings) > 0 && !slices.Contains(headings, c.Heading) {
				continue
			}
			l.mu.Lock()
			l.typed[c] = true
			l.mu.Unlock()
			if !yield(c) {
				return
			}
		}
	}
}

// Take returns the only command of a document with this beginning, and marks it as run.
func (l *Lines) Take(t testing.TB, document, begin string) Command {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []Command
	for _, c := range l.all {
		if c.Document == document && strings.HasPrefix(c.Text, begin) {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d commands of %s begin with %q, of those that the ledger gives to this test", len(found), document, begin)
	}
	l.typed[found[0]] = true
	return found[0]
}
