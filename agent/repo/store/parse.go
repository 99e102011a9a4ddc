package store

import (
	"bytes"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// parseTree reads a tree: entries of mode, space, name, NUL and 20 bytes of id, in git's order. Errors name the tree by its id.
func parseTree(id plan.ID, b []byte) ([]plan.Entry, error) {
	entries := make([]plan.Entry, 0, len(b)/40+1)
	for len(b) > 0 {
		space := bytes.IndexByte(b, ' ')
		nul := bytes.IndexByte(b, 0)
		if space < 0 || nul < space || len(b) < nul+21 {
			return nil, badTree(id, "an entry is incomplete")
		}
		mode, ok := ParseMode(b[:space])
		if !ok {
			return nil, badTree(id, "it has an entry of mode "+failure.Quote(string(b[:space])))
		}
		e := plan.Entry{Name: string(b[space+1 : nul]), Mode: mode, ID: plan.ID(b[nul+1 : nul+21])}
		if e.Name == "" || bytes.IndexByte(b[space+1:nul], '/') >= 0 {
			return nil, badTree(id, "it has an entry with no name, or with a slash in its name")
		}
		if n := len(entries); n > 0 && !sortsBefore(entries[n-1], e) {
			return nil, badTree(id, "its entries are not sorted")
		}
		entries = append(entries, e)
		b = b[nul+21:]
	}
	return entries, nil
}

func badTree(id plan.ID, what string) error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository,
		"tree %s of the repository is malformed: %s; run git fsck on the repository", id, what)
}

// ParseMode reads the octal mode of an entry. It ignores all permissions except the executable bit of the owner, because old
// versions of git wrote others.
func ParseMode(b []byte) (plan.Mode, bool) {
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

// sortsBefore reports whether a comes before b in git's order: by name, as if the name of a directory ended with a slash. If the
// names are equal, it returns false. A file and a directory with the same name may have others between them; package desired
// refuses these.
func sortsBefore(a, b plan.Entry) bool {
	if a.Name == b.Name {
		return false
	}
	n := min(len(a.Name), len(b.Name))
	if a.Name[:n] != b.Name[:n] {
		return a.Name[:n] < b.Name[:n]
	}
	return byteAt(a, n) < byteAt(b, n)
}

// byteAt returns the byte of an entry's name that counts for the order.
func byteAt(e plan.Entry, n int) byte {
	switch {
	case n < len(e.Name):
		return e.Name[n]
	case e.Mode == plan.Directory:
		return '/'
	}
	return 0
}

// rootTreeID returns the id of the root tree from b, the content of the object id, which has the kind k.
func rootTreeID(id plan.ID, k kind, b []byte) (plan.ID, error) {
	if k != kindCommit {
		return plan.ID{}, failure.New(v1alpha1.ReasonRefNotFound,
			"%s is a %s, not a commit; ask for a branch, a tag of a commit, or a commit id", id, k)
	}
	if tree, _, ok := cutHeader(b, "tree"); ok {
		return tree, nil
	}
	return plan.ID{}, failure.New(v1alpha1.ReasonUnsupportedRepository,
		"commit %s of the repository is malformed: it names no tree; run git fsck on the repository", id)
}

// cutHeader reads the line "name id" at the start of a commit or a tag, and returns what follows. It returns false if the line
// has another name or no valid id.
func cutHeader(b []byte, name string) (id plan.ID, rest []byte, ok bool) {
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	value, ok := bytes.CutPrefix(line, []byte(name+" "))
	id, err := plan.ParseID(string(value))
	return id, rest, ok && err == nil
}

// commitParents returns the parents of a commit. Their lines follow the line of the tree.
func commitParents(commit plan.ID, b []byte) (parents []plan.ID, err error) {
	_, b, _ = bytes.Cut(b, []byte("\n"))
	for bytes.HasPrefix(b, []byte("parent ")) {
		id, rest, ok := cutHeader(b, "parent")
		if !ok {
			return nil, corrupt("a parent of commit %s is not an id", commit)
		}
		parents, b = append(parents, id), rest
	}
	return parents, nil
}

// commitAuthor returns the author of a commit as "name <mail>", or "" if its header has no well-formed author.
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

// commitSubject returns the first line with text of a commit's message, or "".
func commitSubject(b []byte) string {
	_, message, _ := bytes.Cut(b, []byte("\n\n"))
	for line := range bytes.Lines(message) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return string(line)
		}
	}
	return ""
}

// tagTarget returns the object that an annotated tag points to.
func tagTarget(tag plan.ID, b []byte) (plan.ID, error) {
	id, _, ok := cutHeader(b, "object")
	if !ok {
		return plan.ID{}, corrupt("tag %s does not name an object", tag)
	}
	return id, nil
}
