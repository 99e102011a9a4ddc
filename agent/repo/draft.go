package repo

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/pieces"
)

// Edit is a change to one path of a tree.
type Edit struct {
	Path    string // slash-separated, as in git
	Delete  bool
	Content pieces.Bytes
	// Known is the blob of the new content if the server has it already; then Content is not used.
	Known plan.ID
	Exec  bool // executable
}

// Person is the author or the committer of a commit.
type Person struct {
	Name, Mail string
	When       time.Time
}

// Draft is a commit that is not in the repository yet: a few new objects, which are all in memory, above those of its base. One
// goroutine at a time may use it.
type Draft struct {
	Root plan.ID // the root tree

	base    Trees
	objects map[plan.ID]object
	order   []plan.ID                // of the objects in the pack
	trees   map[plan.ID][]plan.Entry // entries of new trees
}

type object struct {
	kind    plumbing.ObjectType
	content pieces.Bytes
}

// Trees reads objects and the exact bytes of trees. *Store implements it.
type Trees interface {
	plan.Objects
	// TreeBytes returns the bytes of a well-formed tree.
	TreeBytes(id plan.ID) ([]byte, error)
}

// NewDraft applies edits to the tree root of base. Entries that no edit names keep their exact modes. Two edits must not have the
// same path. The caller must not change the content of the edits afterwards.
func NewDraft(base Trees, root plan.ID, edits []Edit) (*Draft, error) {
	d := &Draft{base: base, objects: map[plan.ID]object{}, trees: map[plan.ID][]plan.Entry{}}
	edits = slices.Clone(edits)
	for _, e := range edits {
		if err := checkEdit(e.Path); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(edits, func(a, b Edit) int { return strings.Compare(a.Path, b.Path) })
	tree, err := d.editTree(root, edits, 0)
	if err != nil {
		return nil, err
	}
	if tree.IsZero() { // everything is deleted: the empty tree
		tree = d.add(plumbing.TreeObject, nil)
		d.trees[tree] = nil
	}
	d.Root = tree
	return d, nil
}

// checkEdit rejects paths that git, or a checkout of git, does not accept.
func checkEdit(path string) error {
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git") || strings.ContainsRune(name, 0) {
			return failure.New(v1alpha1.ReasonUnsafePath, "%s is not a path that git can have", failure.Quote(path))
		}
	}
	return nil
}

// maxDraftDepth is the maximum number of directories in a path.
const maxDraftDepth = 64

// editTree applies edits to a tree, which does not exist if id is zero. It returns the new tree, or zero if that is empty. The
// paths of edits are relative to the tree, and sorted.
func (d *Draft) editTree(id plan.ID, edits []Edit, depth int) (plan.ID, error) {
	if depth > maxDraftDepth {
		return plan.ID{}, failure.New(v1alpha1.ReasonLimitExceeded, "a path has more than %d directories", maxDraftDepth)
	}
	var entries []rawEntry
	if !id.IsZero() {
		raw, err := d.base.TreeBytes(id)
		if err != nil {
			return plan.ID{}, fmt.Errorf("read tree %s: %w", id.Short(), err)
		}
		entries = parseRawTree(raw)
	}
	for len(edits) > 0 {
		name, _, _ := strings.Cut(edits[0].Path, "/")
		n := 1
		for n < len(edits) && (edits[n].Path == name || strings.HasPrefix(edits[n].Path, name+"/")) {
			n++
		}
		var err error
		if entries, err = d.editEntry(entries, name, edits[:n], depth); err != nil {
			return plan.ID{}, err
		}
		edits = edits[n:]
	}
	if len(entries) == 0 {
		return plan.ID{}, nil
	}
	slices.SortFunc(entries, func(a, b rawEntry) int { return strings.Compare(a.key(), b.key()) })
	return d.addTree(entries), nil
}

// editEntry applies the edits of one name to the entries of a tree.
func (d *Draft) editEntry(entries []rawEntry, name string, edits []Edit, depth int) ([]rawEntry, error) {
	i := slices.IndexFunc(entries, func(e rawEntry) bool { return e.Name == name })
	var old *rawEntry
	if i >= 0 {
		old = &entries[i]
		entries = slices.Concat(entries[:i], entries[i+1:])
	}
	if edits[0].Path == name {
		if len(edits) > 1 {
			return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is a file and a directory", failure.Quote(edits[0].Path))
		}
		return d.editFile(entries, old, name, edits[0])
	}
	var subtree plan.ID
	if old != nil {
		if old.Mode != plan.Directory {
			return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is a file in git, and a directory on the gateway", failure.Quote(name))
		}
		subtree = old.ID
	}
	inner := slices.Clone(edits)
	for k := range inner {
		inner[k].Path = strings.TrimPrefix(inner[k].Path, name+"/")
	}
	tree, err := d.editTree(subtree, inner, depth+1)
	if err != nil || tree.IsZero() {
		return entries, err
	}
	mode := modeDir
	if old != nil {
		mode = old.mode
	}
	return append(entries, newRawEntry(mode, name, tree)), nil
}

// editFile applies an edit to a file. old is its entry, nil if there is none; entries do not contain it.
func (d *Draft) editFile(entries []rawEntry, old *rawEntry, name string, e Edit) ([]rawEntry, error) {
	if old != nil && old.Mode != plan.Regular && old.Mode != plan.Executable {
		return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is not a regular file in git", failure.Quote(name))
	}
	if e.Delete {
		return entries, nil
	}
	mode := modeFile
	switch {
	case old != nil && (old.Mode == plan.Executable) == e.Exec:
		mode = old.mode // which may have other permissions
	case e.Exec:
		mode = modeExec
	}
	id := e.Known
	if id.IsZero() {
		id = d.add(plumbing.BlobObject, e.Content)
	}
	return append(entries, newRawEntry(mode, name, id)), nil
}

// add adds an object and returns its id.
func (d *Draft) add(kind plumbing.ObjectType, content pieces.Bytes) plan.ID {
	h := plumbing.NewHasher(kind, content.Len())
	_, _ = content.WriteTo(h) // never fails
	id := plan.ID(h.Sum())
	if _, ok := d.objects[id]; !ok {
		d.objects[id] = object{kind, content}
		d.order = append(d.order, id)
	}
	return id
}

func (d *Draft) addTree(entries []rawEntry) plan.ID {
	var b bytes.Buffer
	list := make([]plan.Entry, 0, len(entries))
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00%s", e.mode, e.Name, e.ID[:])
		list = append(list, e.Entry)
	}
	id := d.add(plumbing.TreeObject, pieces.Of(b.Bytes()))
	d.trees[id] = list
	return id
}

// MakeCommit adds the commit object and returns its id. message must end with a newline. If sign is not nil, it signs the commit;
// MakeCommit fails only if sign fails.
func (d *Draft) MakeCommit(parent plan.ID, author, committer Person, message string, sign Signer) (plan.ID, error) {
	head := fmt.Sprintf("tree %s\nparent %s\nauthor %s\ncommitter %s\n", d.Root, parent, author, committer)
	commit, err := appendSignature(head, message, sign)
	if err != nil {
		return plan.ID{}, err
	}
	return d.add(plumbing.CommitObject, pieces.Of([]byte(commit))), nil
}

// String returns the person and the time in the form of a commit's header.
func (p Person) String() string { return fmt.Sprintf("%s %d +0000", p.Address(), p.When.Unix()) }

// Address returns the person as "name <mail>". It leaves out control characters and angle brackets of the name and of the mail.
func (p Person) Address() string {
	clean := func(s string) string {
		return strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r == '<' || r == '>' || r == 0x7f {
				return -1
			}
			return r
		}, s))
	}
	return fmt.Sprintf("%s <%s>", clean(p.Name), clean(p.Mail))
}

// Pack returns a pack with the new objects, without deltas. Call it once, as the last method of d. The pack reuses the memory of the
// objects' content, also of Edit.Content, so that a large draft and its pack do not take memory at the same time.
func (d *Draft) Pack() (pieces.Bytes, error) {
	var pack pieces.Buffer
	sum := sha1.New()
	out := io.MultiWriter(&pack, sum)
	_, _ = out.Write(store.PackHeader(len(d.order))) // memory and a hash: never fails
	deflate := zlib.NewWriter(nil)
	for _, id := range d.order {
		o := d.objects[id]
		delete(d.objects, id)
		_, _ = out.Write(store.EntryHeader(o.kind, o.content.Len()))
		deflate.Reset(out)
		for i, piece := range o.content {
			if _, err := deflate.Write(piece); err != nil {
				return nil, err
			}
			o.content[i] = nil
			pack.Reuse(piece)
		}
		if err := deflate.Close(); err != nil {
			return nil, err
		}
	}
	_, _ = pack.Write(sum.Sum(nil))
	return pack.Bytes, nil
}

// Objects returns the objects of the draft and of its base.
func (d *Draft) Objects() plan.Objects { return draftObjects{d} }

type draftObjects struct{ d *Draft }

func (o draftObjects) Tree(id plan.ID) ([]plan.Entry, error) {
	if list, ok := o.d.trees[id]; ok {
		return list, nil
	}
	return o.d.base.Tree(id)
}

func (o draftObjects) Has(id plan.ID) bool {
	_, ok := o.d.objects[id]
	return ok || o.d.base.Has(id)
}

func (o draftObjects) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if b, ok := o.d.objects[id]; ok && b.kind == plumbing.BlobObject {
		return b.content.WriteTo(w)
	}
	return o.d.base.WriteBlob(w, id)
}

const (
	modeFile = "100644"
	modeExec = "100755"
	modeDir  = "40000"
)

// rawEntry is an entry of a tree with its exact mode.
type rawEntry struct {
	plan.Entry
	mode string // octal
}

// newRawEntry returns an entry with a mode that git accepts.
func newRawEntry(mode, name string, id plan.ID) rawEntry {
	m, _ := store.ParseMode([]byte(mode))
	return rawEntry{plan.Entry{Name: name, Mode: m, ID: id}, mode}
}

// parseRawTree reads a well-formed tree.
func parseRawTree(b []byte) []rawEntry {
	var entries []rawEntry
	for len(b) > 0 {
		space, nul := bytes.IndexByte(b, ' '), bytes.IndexByte(b, 0)
		entries = append(entries, newRawEntry(string(b[:space]), string(b[space+1:nul]), plan.ID(b[nul+1:nul+21])))
		b = b[nul+21:]
	}
	return entries
}

// key returns the key by which git sorts entries.
func (e rawEntry) key() string {
	if e.Mode == plan.Directory {
		return e.Name + "/"
	}
	return e.Name
}
