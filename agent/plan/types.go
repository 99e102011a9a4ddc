// Package plan decides what a sync does. It is pure: from the tree of a commit, the rules of a profile, the manifest of
// what was written last and the state of the disk it computes Changes, a value that prints. It does no I/O of its own;
// what it reads, it reads through the interfaces Objects, Manifest and State, which repo and disk implement.
package plan

import (
	"encoding/hex"
	"fmt"
	"io"
	"iter"
)

// ID is a git object id (SHA-1).
type ID [20]byte

// String returns the id as 40 lower-case hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first seven hex digits.
func (id ID) Short() string { return hex.EncodeToString(id[:])[:7] }

// IsZero reports whether the id is the null id, which names no object.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(b []byte) error {
	parsed, err := ParseID(string(b))
	*id = parsed
	return err
}

// ParseID reads 40 hex digits.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 40 {
		return id, fmt.Errorf("%q is not an object id: want 40 hex digits", s)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("%q is not an object id: %w", s, err)
	}
	return id, nil
}

// Mode is the kind of a tree entry.
type Mode uint8

// The kinds that git knows. Zero is none of them.
const (
	Regular Mode = iota + 1
	Executable
	Directory
	Symlink
	Submodule
)

// Entry is one line of a git tree. Name is the raw name of git: it may be no UTF-8, but never holds a slash or NUL.
type Entry struct {
	Name string
	Mode Mode
	ID   ID
}

// Objects reads git objects. Its methods may be called from several goroutines.
type Objects interface {
	// Tree returns the entries of a tree in git's order. The caller must not change the slice.
	Tree(id ID) ([]Entry, error)
	// Has reports whether an object is there. Who can do without an object asks first: for a store, one that it is asked for
	// and does not have is damage.
	Has(id ID) bool
	// WriteBlob writes the content of a blob to w and returns the number of bytes. Its memory does not depend on the
	// blob's size where the pack holds the blob undeltified.
	WriteBlob(w io.Writer, id ID) (int64, error)
}

// Kind is what lies at a path of the data directory.
type Kind uint8

// A path of the data directory is one of these.
const (
	Missing Kind = iota
	File
	Dir
	Link  // a symbolic link, whatever it points to
	Other // a socket, device or pipe
)

// Stat describes a path of the data directory without reading it.
type Stat struct {
	Size  int64 // bytes
	Mtime int64 // nanoseconds since 1970
	Kind  Kind
	Exec  bool // any executable bit
	// NoModes says that the volume keeps no modes, so that Exec means nothing.
	NoModes bool
}

// State is the data directory as it is now. Paths are relative and slash separated. No method follows a symbolic link,
// neither at the end of a path nor in its parents: a parent that is a link makes the Stat Missing, and Blocked says so.
type State interface {
	// Stat never fails for a path that is not there: its Kind is Missing.
	Stat(path string) (Stat, error)
	// Blocked returns the first parent of path that is there and is no directory ("" where there is none): what has to
	// go away before path can be written.
	Blocked(path string) (parent string, kind Kind, err error)
	// BlobID returns the git blob id of a file's content. One that is larger than any blob may be is not read: its id is the
	// null id, which is that of no blob.
	BlobID(path string) (ID, error)
	// Read returns a file's content; more than limit bytes is an error.
	Read(path string, limit int64) ([]byte, error)
	// Walk yields all files, links and others below dir, sorted bytewise by path; directories themselves are not
	// yielded. It never yields the agent's own folders (.stoker).
	Walk(dir string) iter.Seq2[Found, error]
}

// Found is a path that Walk met.
type Found struct {
	Path string
	Stat Stat
}

// Owned is what the manifest says of a file that is ours.
type Owned struct {
	Path string
	// Want is the blob that git wanted here at the last sync, Have the blob id of the bytes that lay there after it. They
	// differ where bytes of the gateway were adopted: a re-signed resource.json, JSON of the same meaning, a thumbnail.
	Want, Have ID
	Size       int64 // bytes of Have
	Mtime      int64 // nanoseconds, as stat showed it after the write
	Exec       bool
	// Origin is the index of the mapping (in Header.Mappings) that brought the file.
	Origin uint16
}

// Header is what the manifest says of the sync that wrote it.
type Header struct {
	Ref    string // as it was asked for
	Commit ID
	// Rules is the fingerprint of the rules that were in force; another one makes the next plan a full one.
	Rules string
	// Mappings names source and destination of each mapping, for Owned.Origin.
	Mappings []Origin
	// Files is the number of owned files.
	Files int
	// Complete is false while files are there that a sync could not deliver; then the next plan is a full one.
	Complete bool
}

// Origin names a mapping.
type Origin struct {
	Source, Destination string
}

// Manifest is the record of what is ours, sorted bytewise by path. Reading it does not load it whole.
type Manifest interface {
	Header() Header
	// Get returns the record of one path.
	Get(path string) (Owned, bool, error)
	// All yields the records whose path starts with prefix ("" for all), sorted.
	All(prefix string) iter.Seq2[Owned, error]
}
