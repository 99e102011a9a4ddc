package disk

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// journal is what another process needs to finish or undo a run.
type journal struct {
	header  plan.Header
	name    string             // of its folder in lost+found
	areas   []string           // directories with .stoker/staging, "" first
	changes []plan.Change      // sorted by path
	signed  map[string]plan.ID // see plan.Changes.Signed
	slots   []slot             // one per change
	dirs    []directory        // that tasks make or remove
	tasks   []task             // in order
	refuse  bool               // see RefuseForeign
	base    base               // the manifest that the edits apply to
}

// The journal has everything that another process needs to finish or undo a run: magic, the parts in the order of run's
// fields, and a SHA-256 of all of it. It is renamed into place, so that it is complete or missing; anything else was
// damaged later.
const (
	journalMagic = "stokerj1"
	maxAreas     = 1 << 10
)

// changeBytes is the memory of a change with its slot and step, or of a directory, without its path.
const changeBytes = 192

// Minimum sizes in the journal.
const (
	minChange    = 3 + 2 + 2*len(plan.ID{}) + 7 // kind, flags, found kind; path; ids; numbers
	minDirectory = 4
)

// maxRun bounds the memory of a run. It suffices for a commit that moves every file that a gateway may have. A journal
// that claims more was not written by an agent, and reading it would crash this one at every start.
func (o *Options) maxRun() int64 { return int64(o.MaxFiles) * 640 }

const (
	flagChangeExec = 1 << iota
	flagFoundExec
	flagConflict
	flagOwned
	flagSigned       // git's blob follows
	flagChangesKnown = flagChangeExec | flagFoundExec | flagConflict | flagOwned | flagSigned
)

const (
	flagBase = 1 << iota // there was a manifest
	flagRefuse
	flagRunsKnown = flagBase | flagRefuse
)

func (j *journal) encode(to io.Writer) error {
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(to, sum), 64<<10)
	head, err := encodeHeader(j.header)
	if err != nil {
		return err
	}
	b := append([]byte(nil), journalMagic...)
	b = appendString(b, string(head))
	b = appendString(b, j.name)
	b = append(b, boolByte(j.base.known)*flagBase|boolByte(j.refuse)*flagRefuse)
	b = append(b, j.base.commit[:]...)
	b = binary.AppendUvarint(b, uint64(j.base.files))
	b = binary.AppendUvarint(b, uint64(len(j.areas)))
	for _, a := range j.areas {
		b = appendString(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(j.changes)))
	flush := func() { // w keeps its first error until Flush
		_, _ = w.Write(b)
		b = b[:0]
	}
	for i := range j.changes {
		b = j.appendChange(b, i)
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(j.dirs)))
	for _, x := range j.dirs {
		b = appendString(b, x.path)
		b = append(b, boolByte(x.made))
		b = binary.AppendUvarint(b, uint64(x.perm))
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(j.tasks)))
	for _, t := range j.tasks {
		b = append(b, byte(t.kind))
		b = binary.AppendUvarint(b, uint64(t.at))
		flush()
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// size returns the memory of the run, counted as in decodeJournal.
func (j *journal) size() int64 {
	sum := int64(len(j.areas)+len(j.changes)+len(j.dirs)) * changeBytes
	for _, a := range j.areas {
		sum += int64(len(a))
	}
	for i := range j.changes {
		sum += int64(len(j.changes[i].Path))
	}
	for i := range j.dirs {
		sum += int64(len(j.dirs[i].path))
	}
	return sum
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (j *journal) appendChange(b []byte, i int) []byte {
	c, s := &j.changes[i], &j.slots[i]
	git, signed := j.signed[c.Path]
	flags := boolByte(c.Exec)*flagChangeExec | boolByte(c.Found.Exec)*flagFoundExec |
		boolByte(c.Conflict)*flagConflict | boolByte(c.Owned)*flagOwned | boolByte(signed)*flagSigned
	b = append(b, byte(c.Op), flags, byte(c.Found.Kind))
	b = appendString(b, c.Path)
	b = append(append(b, c.ID[:]...), c.FoundID[:]...)
	if signed {
		b = append(b, git[:]...)
	}
	b = binary.AppendUvarint(b, uint64(c.Origin))
	b = binary.AppendVarint(b, c.Found.Size)
	b = binary.AppendVarint(b, c.Found.Mtime)
	b = binary.AppendUvarint(b, uint64(s.area))
	b = binary.AppendUvarint(b, s.ino)
	b = binary.AppendVarint(b, s.size)
	return binary.AppendVarint(b, s.mtime)
}

// readJournal reads a journal, or returns nil if there is none. If the file is not a journal, it returns ErrDamaged,
// and detects that without holding it in memory.
func (d *Dir) readJournal(name string) (*journal, error) {
	f, fi, err := d.own.openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	// A change is smaller in the file than in memory, and the rest has its own bounds.
	if limit := d.o.maxRun() + maxHeader + maxAreas*safe.MaxPath; fi.Size() > limit {
		return nil, safe.Damaged("the %s has %d bytes, more than the %d it may have", name, fi.Size(), limit)
	}
	return decodeJournal(f, fi.Size(), d.o.maxRun())
}

// decodeJournal reads a journal of size bytes whose run may take limit bytes of memory. It checks paths like those of a
// plan, because others can write where the journal lies.
func decodeJournal(f io.ReaderAt, size, limit int64) (*journal, error) {
	body := size - sha256.Size
	magic := make([]byte, len(journalMagic))
	if body < int64(len(magic)) {
		return nil, safe.Damaged("the journal has %d bytes, fewer than an empty one", size)
	}
	if _, err := f.ReadAt(magic, 0); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if string(magic) != journalMagic {
		return nil, safe.Damaged("the journal does not start as one of this version")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body)); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if _, err := f.ReadAt(want, body); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, safe.Damaged("the journal has another checksum")
	}
	d := &decoder{more: io.NewSectionReader(f, int64(len(magic)), body-int64(len(magic)))}
	j := &journal{}
	var err error
	if j.header, err = decodeHeader(d.bytes(maxHeader)); err != nil && d.err == nil {
		d.fail("the journal's header: %w", err)
	}
	if j.name = d.string(255); d.err == nil && !validRunName(j.name) {
		d.fail("the journal names a bad folder %q", j.name)
	}
	flags := d.byte()
	if flags&^flagRunsKnown != 0 {
		d.fail("the journal has unknown flags %#x", flags)
	}
	j.refuse = flags&flagRefuse != 0
	j.base = base{known: flags&flagBase != 0, commit: d.id(), files: d.length(math.MaxInt32)}
	hold := func(path string) {
		if limit -= changeBytes + int64(len(path)); limit < 0 {
			d.fail("the journal has more changes than an agent makes")
		}
	}
	for range d.length(maxAreas) {
		j.areas = append(j.areas, d.path(true))
		hold(j.areas[len(j.areas)-1])
	}
	// Allocate at once, but not for more than there can be: a growing list would temporarily take twice the memory.
	n := d.length(int(min(max(limit, 0)/changeBytes, body/int64(minChange))))
	j.changes, j.slots = make([]plan.Change, 0, n), make([]slot, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		c, s := j.readChange(d)
		if i > 0 && d.err == nil && c.Path <= j.changes[i-1].Path {
			d.fail("the journal's changes are not sorted")
		}
		j.changes, j.slots = append(j.changes, c), append(j.slots, s)
		hold(c.Path)
	}
	n = d.length(int(min(max(limit, 0)/changeBytes, body/minDirectory)))
	j.dirs = make([]directory, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		j.dirs = append(j.dirs, directory{path: d.path(false), made: d.byte() == 1, perm: uint32(d.uvarint(0o7777))})
		hold(j.dirs[i].path)
	}
	n = d.length(len(j.changes) + len(j.dirs))
	j.tasks = make([]task, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		j.tasks = append(j.tasks, j.readTask(d))
	}
	if d.err == nil && !d.end() {
		d.fail("the journal is longer than it says")
	}
	if d.err != nil {
		return nil, d.err
	}
	return j, nil
}

func (j *journal) readChange(d *decoder) (plan.Change, slot) {
	var c plan.Change
	c.Op = plan.Op(d.byte())
	flags := d.byte()
	c.Found.Kind = plan.Kind(d.byte())
	if c.Op < plan.Create || c.Op > plan.Keep || flags&^flagChangesKnown != 0 || c.Found.Kind > plan.Other {
		d.fail("the journal has a change of an unknown kind")
	}
	c.Exec, c.Found.Exec = flags&flagChangeExec != 0, flags&flagFoundExec != 0
	c.Conflict, c.Owned = flags&flagConflict != 0, flags&flagOwned != 0
	c.Path = d.path(false)
	c.ID, c.FoundID = d.id(), d.id()
	if flags&flagSigned != 0 {
		if j.signed == nil {
			j.signed = make(map[string]plan.ID)
		}
		j.signed[c.Path] = d.id()
	}
	c.Origin = uint16(d.uvarint(math.MaxUint16))
	c.Found.Size, c.Found.Mtime = d.varint(), d.varint()
	return c, slot{
		area: uint16(d.length(max(0, len(j.areas)-1))), ino: d.uvarint(math.MaxUint64), size: d.varint(), mtime: d.varint(),
	}
}

func (j *journal) readTask(d *decoder) task {
	t := task{kind: taskKind(d.byte()), at: d.length(math.MaxInt32)}
	ok := false
	switch t.kind {
	case taskWrite:
		ok = t.at < len(j.changes) && writes(j.changes[t.at].Op)
	case taskRemove:
		ok = t.at < len(j.changes) && j.changes[t.at].Op == plan.Delete
	case taskMkdir, taskRmdir:
		ok = t.at < len(j.dirs) && j.dirs[t.at].made == (t.kind == taskMkdir)
	}
	if !ok {
		d.fail("the journal has a step that fits nothing")
	}
	return t
}

// path reads a path inside the data directory and outside our own folders. It may be empty only if empty is set.
func (d *decoder) path(empty bool) string {
	p := d.string(safe.MaxPath)
	if d.err == nil && (p != "" || !empty) {
		if err := safe.CheckPath(p); err != nil {
			d.fail("the journal has a bad path: %w", err)
		}
	}
	return p
}

// slot is the place of a change in a staging folder: first of the wanted bytes, then of what they replaced.
type slot struct {
	ino   uint64 // of the file with the wanted bytes
	size  int64
	mtime int64
	area  uint16
	// took reports that this process started to move something from its place to the slot; unknown after a crash.
	took bool
}

// directory is one that the run makes, or one of ours that it removes if empty.
type directory struct {
	path string
	made bool // to be made; otherwise to be removed
	perm uint32
	// kept reports that the directory to be made already existed, or that the one to be removed is not empty.
	kept bool
}

// task is one step of a run.
type task struct {
	kind taskKind
	at   int // index in changes or dirs
}

type taskKind uint8

const (
	taskWrite taskKind = iota + 1
	taskRemove
	taskMkdir
	taskRmdir
)

// pathOf returns the path of a step.
func (j *journal) pathOf(t task) string {
	if t.kind == taskWrite || t.kind == taskRemove {
		return j.changes[t.at].Path
	}
	return j.dirs[t.at].path
}

// edits yields the run's changes to the manifest.
func (j *journal) edits() edits {
	dirs := j.editedDirs()
	c, k := 0, 0
	dir := func() *directory { return &j.dirs[dirs[k]] }
	return func() (edit, bool) {
		for {
			switch {
			case c == len(j.changes) && k == len(dirs):
				return edit{}, false
			case c == len(j.changes) || k < len(dirs) && dir().path < j.changes[c].Path:
				k++
				return j.dirs[dirs[k-1]].edit(), true
			case k < len(dirs) && dir().path == j.changes[c].Path:
				// A path may be both file and directory: a written file counts, and a directory counts in place of a
				// removed file.
				if !writes(j.changes[c].Op) && dir().made {
					c++
				} else {
					k++
				}
			default:
				c++
				return j.edit(c - 1), true
			}
		}
	}
}

func (j *journal) edit(i int) edit {
	c, s := &j.changes[i], &j.slots[i]
	rec := record{Owned: plan.Owned{
		Path: c.Path, Want: c.ID, Have: c.ID, Size: s.size, Mtime: s.mtime, Exec: c.Exec, Origin: c.Origin,
	}}
	switch c.Op {
	case plan.Create, plan.Update:
		if git, ok := j.signed[c.Path]; ok {
			rec.Want = git
		}
		return edit{editSet, rec}
	case plan.Adopt:
		rec.Have, rec.Size, rec.Mtime = c.FoundID, c.Found.Size, c.Found.Mtime
		return edit{editSet, rec}
	case plan.Keep:
		return edit{editKeep, rec}
	default:
		return edit{editDrop, rec}
	}
}

func slotName(at int) string { return strconv.Itoa(at) }

// asideName is the staging name of an old file on a file system that cannot exchange two names.
func asideName(at int) string { return strconv.Itoa(at) + ".old" }

func writes(op plan.Op) bool { return op == plan.Create || op == plan.Update }

func moves(op plan.Op) bool { return writes(op) || op == plan.Delete }

// find returns the index of the change of a path, or -1.
func (j *journal) find(path string) int {
	l := j.changes
	k := sort.Search(len(l), func(k int) bool { return l[k].Path >= path })
	if k == len(l) || l[k].Path != path {
		return -1
	}
	return k
}

// editedDirs returns the indexes in r.dirs of the directories whose records change, sorted by path.
func (j *journal) editedDirs() []int32 {
	list := make([]int32, 0, len(j.dirs))
	for i := range j.dirs {
		if !j.dirs[i].kept {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return strings.Compare(j.dirs[a].path, j.dirs[b].path) })
	return list
}

func (x *directory) edit() edit {
	e := edit{op: editDrop, rec: record{Owned: plan.Owned{Path: x.path}}}
	if x.made {
		e.op, e.rec.dir = editSet, true
	}
	return e
}

// base identifies the manifest that a run starts from. The journal records it, so that a replay can check for it.
type base struct {
	known  bool // there was a manifest
	commit plan.ID
	files  int
}

func baseOf(m *manifest) base {
	if m.f == nil {
		return base{}
	}
	return base{known: true, commit: m.header.Commit, files: m.header.Files}
}
