package store

import (
	"bytes"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// parseTree reads a tree: entries of mode, space, name, NUL and 20 bytes of id, in git's order.
func parseTree(id plan.ID, b []byte) ([]plan.Entry, error) {
	entries := make([]plan.Entry, 0, len(b)/40+1)
	for len(b) > 0 {
		space := bytes.IndexByte(b, ' ')
		nul := bytes.IndexByte(b, 0)
		if space < 0 || nul < space || len(b) < nul+21 {
			return nil, badTree(id, "it is cut short")
		}
		mode, ok := parseMode(b[:space])
		if !ok {
			return nil, badTree(id, "it has an entry of mode "+failure.Quote(string(b[:space])))
		}
		e := plan.Entry{Name: string(b[space+1 : nul]), Mode: mode, ID: plan.ID(b[nul+1 : nul+21])}
		if e.Name == "" || bytes.IndexByte(b[space+1:nul], '/') >= 0 {
			return nil, badTree(id, "it has an entry with no name, or with a slash in its name")
		}
		if n := len(entries); n > 0 && !before(entries[n-1], e) {
			return nil, badTree(id, "its entries are not sorted")
		}
		entries = append(entries, e)
		b = b[nul+21:]
	}
	return entries, nil
}

func badTree(id plan.ID, what string) error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository,
		"tree %s of the repository is malformed: %s; see what git fsck says of the repository", id, what)
}

// parseMode reads an octal mode. Old versions of git wrote permissions that are not canonical; only the type and the
// executable bit count.
func parseMode(b []byte) (plan.Mode, bool) {
	if len(b) == 0 || len(b) > 6 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '7' {
			return 0, false
		}
		n = n<<3 | int(c-'0')
	}
	switch n &^ 0o7777 {
	case 0o040000:
		return plan.Directory, true
	case 0o120000:
		return plan.Symlink, true
	case 0o160000:
		return plan.Submodule, true
	case 0o100000:
		if n&0o100 != 0 {
			return plan.Executable, true
		}
		return plan.Regular, true
	}
	return 0, false
}

// before reports whether a comes before b in git's order: by name, as if the name of a directory ended with a slash. Equal
// names are not in order.
func before(a, b plan.Entry) bool {
	if a.Name == b.Name {
		return false
	}
	n := min(len(a.Name), len(b.Name))
	if a.Name[:n] != b.Name[:n] {
		return a.Name[:n] < b.Name[:n]
	}
	return next(a, n) < next(b, n)
}

func next(e plan.Entry, n int) byte {
	switch {
	case n < len(e.Name):
		return e.Name[n]
	case e.Mode == plan.Directory:
		return '/'
	}
	return 0
}

// rootTree returns the tree of a commit, which its first line names.
func rootTree(id plan.ID, k kind, b []byte) (plan.ID, error) {
	if k != kindCommit {
		return plan.ID{}, failure.New(v1alpha1.ReasonRefNotFound,
			"%s is a %s and no commit; ask for a branch, a tag of a commit, or a commit id", id, k)
	}
	const prefix = "tree "
	if len(b) > len(prefix)+40 && string(b[:len(prefix)]) == prefix && b[len(prefix)+40] == '\n' {
		if tree, err := plan.ParseID(string(b[len(prefix) : len(prefix)+40])); err == nil {
			return tree, nil
		}
	}
	return plan.ID{}, failure.New(v1alpha1.ReasonUnsupportedRepository,
		"commit %s of the repository is malformed: it names no tree; see what git fsck says of the repository", id)
}

// commitParents returns the parents of a commit, which are named right behind its tree.
func commitParents(commit plan.ID, b []byte) ([]plan.ID, error) {
	var ids []plan.ID
	for line := range strings.Lines(string(b)) {
		parent, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "parent ")
		if !ok {
			if strings.HasPrefix(line, "tree ") {
				continue
			}
			break
		}
		id, err := plan.ParseID(parent)
		if err != nil {
			return nil, corrupt("a parent of commit %s is no id", commit)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// commitAuthor returns name and mail of the author of a commit, or "" if its header has none.
func commitAuthor(b []byte) string {
	for line := range bytes.Lines(b) {
		if author, ok := bytes.CutPrefix(line, []byte("author ")); ok {
			author, _, _ = bytes.Cut(author, []byte(">"))
			if bytes.IndexByte(author, '<') < 0 {
				return ""
			}
			return string(author) + ">"
		}
		if len(line) == 1 { // the message begins
			break
		}
	}
	return ""
}

// tagTarget returns the object that an annotated tag points to.
func tagTarget(tag plan.ID, b []byte) (plan.ID, error) {
	const prefix = "object "
	if len(b) < len(prefix)+40 || string(b[:len(prefix)]) != prefix {
		return tag, corrupt("tag %s names no object", tag)
	}
	id, err := plan.ParseID(string(b[len(prefix) : len(prefix)+40]))
	if err != nil {
		return tag, corrupt("tag %s names no object", tag)
	}
	return id, nil
}
