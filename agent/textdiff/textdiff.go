// Package textdiff prints the text of changed files as a unified diff: what a sync changed, or what was changed on the gateway. It reads git's
// objects, the manifest, the report of a sync and the files of a data directory, and writes nothing. All but the objects may be hostile, because
// the gateway can write to its volume: no path that the report or the manifest contains is opened, and everything has a bound.
//
// It never prints a file that holds a secret, or that only the gateway may have: package guard decides, as for pull requests.
package textdiff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose/guard"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Bounds.
const (
	maxFiles  = 100
	maxBytes  = 512 << 10 // of a file
	maxLines  = 10_000    // of a file
	maxOutput = 1 << 20   // bytes
	maxPath   = 4 << 10   // bytes of a path that are printed
)

// Objects reads blobs of git; *repo.Objects implements it. For a blob of more than limit bytes, Blob returns only the size.
type Objects interface {
	Blob(id plan.ID, limit int64) (content []byte, size int64, err error)
}

// Drift prints what was changed on the gateway: the difference between what git wanted at each path at the last sync, and the file now. A file that
// cannot be shown has one line, which says why.
func Drift(ctx context.Context, w io.Writer, d *disk.Dir, o Objects, paths []string) error {
	return write(ctx, w, paths, func(path string) string {
		rec, owned, err := d.Manifest().Get(path)
		switch {
		case err != nil:
			return err.Error()
		case !owned:
			return "the agent did not write this file"
		}
		return compare(path, side{"git", func() ([]byte, int64, error) { return blob(o, rec.Want) }},
			side{"gateway", func() ([]byte, int64, error) { return onDisk(d, path) }})
	})
}

// Sync prints what a sync changed according to its report: the files in paths, or all of them if paths is empty. A file that cannot be shown has
// one line, which says why.
func Sync(ctx context.Context, w io.Writer, report audit.Diff, o Objects, paths []string) error {
	changes := map[string]audit.Checksum{}
	var all []string
	for _, c := range report.Changes {
		changes[c.Path] = c.Checksum
		all = append(all, c.Path)
	}
	if len(paths) == 0 {
		paths = all
	}
	return write(ctx, w, paths, func(path string) string {
		sum, changed := changes[path]
		if !changed {
			return "the report of the sync does not have this file"
		}
		return compare(path, side{"before", func() ([]byte, int64, error) { return recorded(o, sum.Before) }},
			side{"after", func() ([]byte, int64, error) { return recorded(o, sum.After) }})
	})
}

// write writes what text returns for each path: a diff, or the reason why there is none, as one line.
func write(ctx context.Context, w io.Writer, paths []string, text func(path string) string) error {
	written := 0
	for i, path := range paths {
		part := ""
		if rule, denied := guard.Path(path, "file"); denied { // "file" stands for the path in git, which is not known here
			part = "not shown: " + rule
		} else if ctx.Err() == nil && i < maxFiles {
			part = text(path)
		}
		if !strings.HasPrefix(part, "--- ") {
			part = audit.Line(path, maxPath) + ": " + part + "\n"
		}
		if written += len(part); ctx.Err() != nil || i >= maxFiles || written > maxOutput {
			_, err := fmt.Fprintf(w, "%d of %d files are not shown, because of the limits on files, time and output: name fewer\n", len(paths)-i, len(paths))
			return err
		}
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	return nil
}

// side is one side of a diff. read returns the content, or only the size of a file that is too large. The content of a file that does not exist is
// nil, with the size 0.
type side struct {
	name string
	read func() (content []byte, size int64, err error)
}

// compare returns the diff of a file, or the reason why there is none.
func compare(path string, before, after side) string {
	var contents [2][]byte
	var sizes [2]int64
	labels := []string{"/dev/null", "/dev/null"}
	for i, s := range []side{before, after} {
		content, size, err := s.read()
		if err != nil {
			return s.name + ": " + err.Error()
		}
		if content != nil || size > 0 {
			labels[i] = s.name + "/" + audit.Line(path, maxPath)
		}
		contents[i], sizes[i] = content, size
	}
	size := func(what string) string {
		return fmt.Sprintf("%s (%s and %s)", what, syntax.SizeText(sizes[0]), syntax.SizeText(sizes[1]))
	}
	if slices.Max(sizes[:]) > maxBytes {
		return size("not shown: larger than 512Ki")
	}
	for _, content := range contents {
		switch lines := bytes.Count(content, []byte("\n")); {
		case bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content):
			return size("binary files differ")
		case lines > maxLines:
			return fmt.Sprintf("not shown: it has %d lines", lines)
		}
		if rule, found := guard.Content(bytes.NewReader(content)); found {
			return "has secrets, not shown: " + rule
		}
	}
	// The diff begins with a line that names both files once more.
	_, text, _ := strings.Cut(string(diff.Diff(labels[0], contents[0], labels[1], contents[1])), "\n")
	switch {
	case text == "" && labels[0] != labels[1] && slices.Contains(labels, "/dev/null"):
		return "an empty file was created or deleted"
	case text == "":
		return "the content is the same"
	case len(text) > maxOutput:
		return "not shown: the difference is larger than 1Mi"
	}
	return text
}

// recorded returns the content that a report names.
func recorded(o Objects, sum string) ([]byte, int64, error) {
	if sum == "" {
		return nil, 0, nil
	}
	id, err := plan.ParseID(strings.TrimPrefix(sum, "git:"))
	if err != nil { // err has a part of the report, which may be long
		return nil, 0, errors.New("the report has no git ID of the content")
	}
	return blob(o, id)
}

// blob returns the content of a blob. That of an empty one is not nil.
func blob(o Objects, id plan.ID) ([]byte, int64, error) {
	content, size, err := o.Blob(id, maxBytes)
	switch {
	case repo.IsNotFound(err):
		return nil, 0, fmt.Errorf("the agent's cache of git objects does not have this content; if git has it, git show %s prints it in a clone", id)
	case err == nil && size == 0:
		content = []byte{}
	}
	return content, size, err
}

// onDisk returns the content of a file of the gateway.
func onDisk(d *disk.Dir, path string) ([]byte, int64, error) {
	st, err := d.Stat(path)
	switch {
	case err != nil, st.Kind == plan.Missing:
		return nil, 0, err
	case st.Kind != plan.File:
		return nil, 0, errors.New("it is not a regular file any more")
	case st.Size > maxBytes:
		return nil, st.Size, nil
	}
	content, err := d.Read(path, maxBytes)
	if err == nil && content == nil {
		content = []byte{}
	}
	return content, int64(len(content)), err
}
