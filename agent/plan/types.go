// Package plan has the plan of a sync as a value, Changes, and what a plan is computed from: the Rules of a profile, and the
// interfaces Objects, Manifest and State, which packages repo and disk implement. Package desired lists the files that a
// commit and the rules ask for, and package planner computes the Changes. All three are pure: they read only through the
// interfaces.
package plan

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
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

// BlobID returns the git blob id of content.
func BlobID(content []byte) ID {
	h := NewBlob(int64(len(content)))
	h.Write(content)
	return ID(h.Sum(nil))
}

// NewBlob returns a hash that computes the git blob id of size bytes.
func NewBlob(size int64) hash.Hash {
	h := sha1.New() //nolint:gosec // git's object ids are SHA-1
	h.Write(append(strconv.AppendInt([]byte("blob "), size, 10), 0))
	return h
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

// Entry is one line of a git tree. Name is the raw name from git: it may be invalid UTF-8, but never contains a slash
// or NUL.
type Entry struct {
	Name string
	Mode Mode
	ID   ID
}

// Objects reads git objects. Its methods may be called from several goroutines.
type Objects interface {
	// Tree returns the entries of a tree in git's order. The caller must not change the slice.
	Tree(id ID) ([]Entry, error)
	// Has reports whether the store has an object. A caller that can do without an object must call Has first: a store
	// treats a failed read as damage.
	Has(id ID) bool
	// WriteBlob writes the content of a blob to w and returns the number of bytes. Memory use does not depend on the
	// blob's size if the pack holds the blob undeltified.
	WriteBlob(w io.Writer, id ID) (int64, error)
}

// CancelableObjects reads trees and blobs until Canceled returns an error, because this package takes no context.
type CancelableObjects struct {
	Objects
	Canceled func() error
}

// Tree implements Objects.
func (o CancelableObjects) Tree(id ID) ([]Entry, error) {
	if err := o.Canceled(); err != nil {
		return nil, err
	}
	return o.Objects.Tree(id)
}

// WriteBlob implements Objects.
func (o CancelableObjects) WriteBlob(w io.Writer, id ID) (int64, error) {
	return o.Objects.WriteBlob(cancelableWriter{w, o.Canceled}, id)
}

type cancelableWriter struct {
	io.Writer
	canceled func() error
}

func (s cancelableWriter) Write(b []byte) (int, error) {
	if err := s.canceled(); err != nil {
		return 0, err
	}
	return s.Writer.Write(b)
}

// Kind is the type of what is at a path of the data directory.
type Kind uint8

// The kinds. The zero Kind is Missing.
const (
	Missing Kind = iota
	File
	Dir
	Link  // a symbolic link, wherever it points
	Other // a socket, device or pipe
)

// Stat describes a path of the data directory without reading it.
type Stat struct {
	Size  int64 // bytes
	Mtime int64 // nanoseconds since 1970
	Kind  Kind
	Exec  bool // any executable bit
	// NoModes reports that the volume does not store permission bits, so that Exec means nothing.
	NoModes bool
}

// State is the current data directory. Paths are relative and slash-separated. No method follows a symbolic link,
// neither at the end of a path nor in its parents: below a link, Stat returns Missing and Blocked returns the link.
type State interface {
	// Stat returns Kind Missing, and no error, for a path that does not exist.
	Stat(path string) (Stat, error)
	// Blocked returns the first parent of path that exists and is not a directory, or "" if there is none. That parent
	// has to be removed before path can be written.
	Blocked(path string) (parent string, kind Kind, err error)
	// BlobID returns the git blob id of a file's content. A file that is larger than the largest allowed blob is not
	// read; its id is the null id, which no blob has.
	BlobID(path string) (ID, error)
	// Read returns a file's content, or an error if it has more than limit bytes.
	Read(path string, limit int64) ([]byte, error)
	// CopyFile writes a file's content to w.
	CopyFile(w io.Writer, path string) error
	// Walk yields all files, links and others below dir, sorted bytewise by path. It yields no directories and nothing
	// in the agent's own folders (.stoker). Their Stat has only the Kind.
	Walk(dir string) iter.Seq2[Found, error]
}

// Found is a path that Walk found.
type Found struct {
	Path string
	Stat Stat
}

// Owned is the manifest's record of an owned file.
type Owned struct {
	Path string
	// Want is the blob that git wanted here at the last sync. Have is the blob id of the content that a sync last wrote or adopted
	// here. They differ if that content has another signature (Changes.Signed), only means the same as git's (a re-signed
	// resource.json, other JSON), or is a thumbnail. They also differ after a Keep.
	Want, Have ID
	Size       int64 // bytes of Have
	Mtime      int64 // nanoseconds since 1970, as stat reported after the write
	Exec       bool
	// Origin is the index in Header.Mappings of the mapping that brought the file.
	Origin uint16
}

// Header describes the sync that wrote the manifest.
type Header struct {
	Ref    string // as requested
	Commit ID
	// Rules is the fingerprint of the rules. If it changes, the next plan is a full one.
	Rules string
	// Mappings is the table that Owned.Origin indexes.
	Mappings []Origin
	// Files is the number of owned files.
	Files int
	// Complete is false if the sync could not deliver every file, or if that is not known, such as after a restore of an archive. Then the
	// next plan is a full one.
	Complete bool
	// Earlier are the last commits that were completely on the disk before Commit, newest last.
	Earlier []ID
}

// maxEarlier bounds Header.Earlier. The history of a GatewaySync has fewer commits.
const maxEarlier = 16

// Ran reports whether a commit is completely on the disk, or is one of Earlier.
func (h Header) Ran(commit ID) bool {
	return !commit.IsZero() && (h.Complete && h.Commit == commit || slices.Contains(h.Earlier, commit))
}

// Before returns the Earlier of next, the header that replaces h.
func (h Header) Before(next Header) []ID {
	if !h.Complete || h.Commit.IsZero() || h.Commit == next.Commit && next.Complete {
		return h.Earlier
	}
	list := append(slices.DeleteFunc(slices.Clone(h.Earlier), func(id ID) bool { return id == h.Commit }), h.Commit)
	return list[max(0, len(list)-maxEarlier):]
}

// Origin names a mapping.
type Origin struct {
	Source, Destination string
	// Template is the template that gave Source, or "".
	Template string `json:",omitempty"`
}

// SameMapping reports whether o and p name the same mapping of the rules. A template may give the mapping another Source for each commit.
func (o Origin) SameMapping(p Origin) bool {
	return o.Destination == p.Destination && o.Template == p.Template && (o.Source == p.Source || o.Template != "")
}

// Manifest is the record of the owned files, sorted bytewise by path. Implementations need not load it whole.
type Manifest interface {
	Header() Header
	// Get returns the record of one path.
	Get(path string) (Owned, bool, error)
	// All yields the records whose path starts with prefix, sorted; "" yields all.
	All(prefix string) iter.Seq2[Owned, error]
}

// Path is a slash-separated path that cannot leave its root: relative, clean, UTF-8 without control characters and backslashes, and
// without a drive letter or git's own folder. "." is the root itself.
type Path string

// Root is the Path of the root itself.
const Root Path = "."

// ParsePath parses a path from outside, such as a field of a GatewaySync. It drops a trailing slash, doubled slashes and "."
// elements. Any other string that is not a Path is an error: LimitExceeded if it is too long or too deep, otherwise UnsafePath.
func ParsePath(s string) (Path, error) {
	if s == "" {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "the path is empty; write %q for the root", Root)
	}
	if len(s) > DefaultLimits.PathBytes {
		return "", tooLong(s, DefaultLimits.PathBytes)
	}
	if s[0] == '/' {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "path %q is absolute; write it relative to the root", s)
	}
	depth := 0
	for name := range strings.SplitSeq(s, "/") {
		if name == "" || name == "." {
			continue
		}
		if err := checkName(s, name); err != nil {
			return "", err
		}
		if depth == 0 && driveLetter(name) {
			return "", failure.New(v1alpha1.ReasonUnsafePath, "path %q begins with a drive letter", s)
		}
		if depth++; depth > DefaultLimits.Depth {
			return "", tooDeep(s, DefaultLimits.Depth)
		}
	}
	return Path(path.Clean(s)), nil
}

// Rel returns the path for joining: "" for the root.
func (p Path) Rel() string {
	if p == Root {
		return ""
	}
	return string(p)
}

// maxName is the maximum length in bytes of a name on Linux file systems.
const maxName = 255

// checkName checks one element of a path; whole is for the message.
func checkName(whole, name string) error {
	switch {
	case name == "" || name == ".":
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q has an empty element", whole)
	case name == "..":
		return failure.New(v1alpha1.ReasonUnsafePath, `path %q contains ".."`, whole)
	case !utf8.ValidString(name):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q is not UTF-8; rename it in git", whole)
	case strings.ContainsFunc(name, unicode.IsControl):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q contains a control character; rename it", whole)
	case strings.ContainsAny(name, `/\`):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q contains a backslash; use slashes", whole)
	case len(name) > maxName:
		return failure.New(v1alpha1.ReasonLimitExceeded, "path %q… has a name of %d bytes; the limit is %d; rename it",
			strings.ToValidUTF8(whole[:min(len(whole), 160)], ""), len(name), maxName)
	case resource.IsGitDir(name):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q is in git's own folder", whole)
	}
	return nil
}

// driveLetter reports whether a name begins with a drive letter of Windows. The name must not be empty.
func driveLetter(name string) bool {
	c := name[0] | 0x20
	return len(name) >= 2 && name[1] == ':' && c >= 'a' && c <= 'z'
}

// Limits bound what a commit may bring.
type Limits struct {
	Files     int   // owned files
	PathBytes int   // of one destination path
	Depth     int   // elements of one destination path
	Rendered  int64 // bytes of a templated or patched file, in git and as written
}

// DefaultLimits are the limits of the agent. The flag --max-files changes Files; the others are fixed.
var DefaultLimits = Limits{Files: 500_000, PathBytes: 1024, Depth: 64, Rendered: 16 << 20}

// orDefault replaces zero limits with the defaults.
func (l Limits) orDefault() Limits {
	return Limits{
		Files: cmp.Or(l.Files, DefaultLimits.Files), PathBytes: cmp.Or(l.PathBytes, DefaultLimits.PathBytes),
		Depth: cmp.Or(l.Depth, DefaultLimits.Depth), Rendered: cmp.Or(l.Rendered, DefaultLimits.Rendered),
	}
}

// CheckFiles returns an error if a commit brings more than the allowed files.
func (l *Limits) CheckFiles(files int) error {
	if files <= l.Files {
		return nil
	}
	return failure.New(v1alpha1.ReasonLimitExceeded,
		"the mappings bring more files than --max-files, %d: map or exclude less", l.Files)
}

// CheckDepth returns an error if the entries of dir, which is depth elements deep, are deeper than allowed.
func (l *Limits) CheckDepth(dir string, depth int) error {
	if depth < l.Depth {
		return nil
	}
	return tooDeep(dir, l.Depth)
}

// CheckPath returns an error if path must not be written. It checks only the last element, name, and the length of the path:
// a walk has checked the parents.
func (l *Limits) CheckPath(path, name string) error {
	if err := checkName(path, name); err != nil {
		return err
	}
	if len(path) == len(name) && driveLetter(name) {
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q begins with a drive letter", path)
	}
	if len(path) > l.PathBytes {
		return tooLong(path, l.PathBytes)
	}
	return nil
}

func tooLong(p string, limit int) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "path %q… has %d bytes, more than %d",
		strings.ToValidUTF8(p[:min(len(p), 80)], ""), len(p), limit)
}

func tooDeep(p string, limit int) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "path %q has more than %d names",
		strings.ToValidUTF8(p[:min(len(p), 160)], ""), limit)
}
