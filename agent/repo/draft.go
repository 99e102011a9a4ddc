package repo

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Edit is a change to one path of a tree.
type Edit struct {
	Path    string // slash-separated, as in git
	Delete  bool
	Content []byte
	// Known is the blob of the new content if the server has it already; Content is not used then.
	Known plan.ID
	// Exec sets the executable bit. A file that has it as it should keeps its exact mode.
	Exec bool
}

// Person is the author or the committer of a commit.
type Person struct {
	Name, Mail string
	When       time.Time
}

// Draft is a commit that is not in the repository yet: a few new objects above those of its base. Its tree
// can be rendered like that of any commit (Objects). All of the new objects are in memory.
type Draft struct {
	Commit plan.ID // zero before Seal
	Root   plan.ID // the tree

	base    Trees
	objects map[plan.ID]object
	order   []plan.ID
	trees   map[plan.ID][]plan.Entry // of new trees
}

type object struct {
	kind    plumbing.ObjectType
	content []byte
}

// Trees are objects with the exact bytes of trees. *Store implements it.
type Trees interface {
	plan.Objects
	// TreeBytes returns the bytes of a tree as git has them, in a form that Tree can read.
	TreeBytes(id plan.ID) ([]byte, error)
}

// TreeBytes implements Trees.
func (s *Store) TreeBytes(id plan.ID) ([]byte, error) { return s.packs.RawTree(id) }

// NewDraft applies edits to the tree root of base. Trees are spliced as raw bytes along the changed paths, so nothing else in them
// changes. Two edits must not have the same path. The draft keeps the content of the edits, which must not change afterwards.
func NewDraft(base Trees, root plan.ID, edits []Edit) (*Draft, error) {
	d := &Draft{base: base, objects: map[plan.ID]object{}, trees: map[plan.ID][]plan.Entry{}}
	edits = slices.Clone(edits)
	for _, e := range edits {
		if err := checkEdit(e.Path); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(edits, func(a, b Edit) int { return strings.Compare(a.Path, b.Path) })
	tree, err := d.splice(root, edits, 0)
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

// checkEdit rejects paths that git, or a checkout of git, would not take.
func checkEdit(path string) error {
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git") || strings.ContainsRune(name, 0) {
			return failure.New(v1alpha1.ReasonUnsafePath, "%s is not a path that git can have", failure.Quote(path))
		}
	}
	return nil
}

// maxDraftDepth bounds the depth of a path.
const maxDraftDepth = 64

// splice returns the tree with edits applied; zero if it is empty. A zero id stands for a tree that does not exist. The paths of edits
// are relative to it, and sorted.
func (d *Draft) splice(id plan.ID, edits []Edit, depth int) (plan.ID, error) {
	if depth > maxDraftDepth {
		return plan.ID{}, failure.New(v1alpha1.ReasonLimitExceeded, "a path has more than %d directories", maxDraftDepth)
	}
	var entries []rawEntry
	if !id.IsZero() {
		raw, err := d.base.TreeBytes(id)
		if err != nil {
			return plan.ID{}, fmt.Errorf("read tree %s: %w", id.Short(), err)
		}
		entries = parseRaw(raw)
	}
	for len(edits) > 0 {
		name, _, nested := strings.Cut(edits[0].Path, "/")
		n := 1
		for n < len(edits) && (edits[n].Path == name || strings.HasPrefix(edits[n].Path, name+"/")) {
			n++
		}
		var err error
		if entries, err = d.edit(entries, name, edits[:n], nested, depth); err != nil {
			return plan.ID{}, err
		}
		edits = edits[n:]
	}
	if len(entries) == 0 {
		return plan.ID{}, nil
	}
	slices.SortFunc(entries, func(a, b rawEntry) int { return strings.Compare(a.key(), b.key()) })
	return d.addTree(entries)
}

// edit applies the edits of one name to the entries of a tree.
func (d *Draft) edit(entries []rawEntry, name string, edits []Edit, nested bool, depth int) ([]rawEntry, error) {
	i := slices.IndexFunc(entries, func(e rawEntry) bool { return e.name == name })
	var old *rawEntry
	if i >= 0 {
		old = &entries[i]
		entries = slices.Concat(entries[:i], entries[i+1:])
	}
	if !nested {
		if len(edits) > 1 {
			return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is a file and a directory", failure.Quote(edits[0].Path))
		}
		return d.editFile(entries, old, name, edits[0])
	}
	var below plan.ID
	if old != nil {
		if !old.dir() {
			return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is a file in git, and a directory on the gateway", failure.Quote(name))
		}
		below = old.id
	}
	inner := slices.Clone(edits)
	for k := range inner {
		inner[k].Path = strings.TrimPrefix(inner[k].Path, name+"/")
	}
	tree, err := d.splice(below, inner, depth+1)
	if err != nil || tree.IsZero() {
		return entries, err
	}
	mode := modeDir
	if old != nil {
		mode = old.mode
	}
	return append(entries, rawEntry{mode: mode, name: name, id: tree}), nil
}

func (d *Draft) editFile(entries []rawEntry, old *rawEntry, name string, e Edit) ([]rawEntry, error) {
	if old != nil && (old.dir() || !old.file()) {
		return nil, failure.New(v1alpha1.ReasonPathCollision, "%s is not a regular file in git", failure.Quote(name))
	}
	if e.Delete {
		return entries, nil
	}
	mode := modeFile
	switch {
	case old != nil && old.exec() == e.Exec:
		mode = old.mode
	case e.Exec:
		mode = modeExec
	}
	id := e.Known
	if id.IsZero() {
		id = d.add(plumbing.BlobObject, e.Content)
	}
	return append(entries, rawEntry{mode: mode, name: name, id: id}), nil
}

// add adds an object and returns its id.
func (d *Draft) add(kind plumbing.ObjectType, content []byte) plan.ID {
	id := plan.ID(plumbing.ComputeHash(kind, content))
	if _, ok := d.objects[id]; !ok {
		d.objects[id] = object{kind, content}
		d.order = append(d.order, id)
	}
	return id
}

func (d *Draft) addTree(entries []rawEntry) (plan.ID, error) {
	var b bytes.Buffer
	list := make([]plan.Entry, 0, len(entries))
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00", e.mode, e.name)
		b.Write(e.id[:])
		list = append(list, plan.Entry{Name: e.name, Mode: e.kind(), ID: e.id})
	}
	id := d.add(plumbing.TreeObject, b.Bytes())
	d.trees[id] = list
	return id, nil
}

// Seal makes the commit, signed unless sign is nil. message ends with a newline. It fails only if sign does.
func (d *Draft) Seal(parent plan.ID, author, committer Person, message string, sign Signer) (plan.ID, error) {
	head := fmt.Sprintf("tree %s\nparent %s\nauthor %s\ncommitter %s\n", d.Root, parent, author, committer)
	commit, err := signed(head, message, sign)
	if err != nil {
		return plan.ID{}, err
	}
	d.Commit = d.add(plumbing.CommitObject, []byte(commit))
	return d.Commit, nil
}

// String returns the person as git writes one. Characters that git's form cannot have are left out.
func (p Person) String() string {
	clean := func(s string) string {
		return strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r == '<' || r == '>' || r == 0x7f {
				return -1
			}
			return r
		}, s))
	}
	return fmt.Sprintf("%s <%s> %d +0000", clean(p.Name), clean(p.Mail), p.When.Unix())
}

// Size returns the number of bytes of all new objects, before they are compressed.
func (d *Draft) Size() int64 {
	var n int64
	for _, o := range d.objects {
		n += int64(len(o.content))
	}
	return n
}

// PackBound returns a size that the pack of WritePack does not exceed.
func (d *Draft) PackBound() int64 {
	const head, object = 64, 64 // of the pack, and of an object: its header, and the frame of its compressed bytes
	n := d.Size()
	return head + n + n/1024 + object*int64(len(d.order)) // what does not compress is stored, with five bytes per block
}

// WritePack writes a pack with the new objects, without deltas. It releases the content of each object that it has written, so that a large
// draft and its pack do not take memory at the same time. It can be called once.
func (d *Draft) WritePack(w io.Writer) error {
	sum := sha1.New()
	out := io.MultiWriter(w, sum)
	head := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(d.order)))
	if _, err := out.Write(head); err != nil {
		return err
	}
	deflate := zlib.NewWriter(nil)
	for _, id := range d.order {
		o := d.objects[id]
		if _, err := out.Write(packHeader(o)); err != nil {
			return err
		}
		deflate.Reset(out)
		if _, err := deflate.Write(o.content); err != nil {
			return err
		}
		if err := deflate.Close(); err != nil {
			return err
		}
		large := len(o.content) >= 1<<20
		delete(d.objects, id)
		if large {
			debug.FreeOSMemory() // the pack itself causes no garbage collection
		}
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

// packHeader returns the type and the size of an object in a pack: the size's low four bits beside the type, then seven bits a byte.
func packHeader(o object) []byte {
	size := uint64(len(o.content))
	b := []byte{byte(o.kind)<<4 | byte(size&0xf)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}

// Objects returns the objects of the draft, and below them those of its base.
func (d *Draft) Objects() plan.Objects { return drafted{d} }

type drafted struct{ d *Draft }

func (o drafted) Tree(id plan.ID) ([]plan.Entry, error) {
	if list, ok := o.d.trees[id]; ok {
		return list, nil
	}
	return o.d.base.Tree(id)
}

func (o drafted) Has(id plan.ID) bool {
	_, ok := o.d.objects[id]
	return ok || o.d.base.Has(id)
}

func (o drafted) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if b, ok := o.d.objects[id]; ok && b.kind == plumbing.BlobObject {
		n, err := w.Write(b.content)
		return int64(n), err
	}
	return o.d.base.WriteBlob(w, id)
}

const (
	modeFile = "100644"
	modeExec = "100755"
	modeDir  = "40000"
)

// rawEntry is an entry of a tree with its mode as git has it.
type rawEntry struct {
	mode, name string
	id         plan.ID
}

// parseRaw reads a tree that the store has checked.
func parseRaw(b []byte) []rawEntry {
	var entries []rawEntry
	for len(b) > 0 {
		space, nul := bytes.IndexByte(b, ' '), bytes.IndexByte(b, 0)
		entries = append(entries, rawEntry{mode: string(b[:space]), name: string(b[space+1 : nul]), id: plan.ID(b[nul+1 : nul+21])})
		b = b[nul+21:]
	}
	return entries
}

func (e rawEntry) dir() bool  { return strings.TrimLeft(e.mode, "0") == modeDir }
func (e rawEntry) file() bool { return strings.HasPrefix(e.mode, "100") }
func (e rawEntry) exec() bool { return e.file() && len(e.mode) == 6 && (e.mode[3]-'0')&1 != 0 }

func (e rawEntry) kind() plan.Mode {
	switch {
	case e.dir():
		return plan.Directory
	case e.exec():
		return plan.Executable
	case e.file():
		return plan.Regular
	case strings.HasPrefix(e.mode, "120"):
		return plan.Symlink
	}
	return plan.Submodule
}

// key orders entries as git does.
func (e rawEntry) key() string {
	if e.dir() {
		return e.name + "/"
	}
	return e.name
}
