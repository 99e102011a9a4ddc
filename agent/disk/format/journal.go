package format

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Journal has everything that another process needs to finish or undo a run. Its file has a magic, the parts in the
// order of the fields, and a SHA-256 of all of it. It is renamed into place, so that it is complete or missing; anything
// else was damaged later.
type Journal struct {
	Header  plan.Header
	Name    string             // of its folder in lost+found
	Areas   []string           // directories with .stoker/staging, "" first
	Changes []plan.Change      // sorted by path
	Signed  map[string]plan.ID // see plan.Changes.Signed
	Slots   []Slot             // one per change
	Dirs    []Directory        // that tasks make or remove
	Tasks   []Task             // in order
	Refuse  bool               // see RefuseForeign
	Base    Base               // the manifest from before the run
	// Snapshot is the snapshot that keeps what the run displaces, or "".
	Snapshot string
	// From is the snapshot whose manifest the edits apply to, because the run restores it; "" for the manifest from before the run.
	From string
}

const journalMagic = "stokerj1"

// MaxAreas bounds the mounts that a data directory is made of.
const MaxAreas = 1 << 10

// changeBytes is the memory of a change with its slot and step, or of a directory, without its path.
const changeBytes = 192

// Minimum sizes in the journal.
const (
	minChange    = 3 + 2 + 2*len(plan.ID{}) + 7 // kind, flags, found kind; path; ids; numbers
	minDirectory = 4
)

const (
	flagChangeExec = 1 << iota
	flagFoundExec
	flagConflict
	flagOwned
	flagSigned // git's blob follows
	flagUnrecorded
	flagChangesKnown = flagChangeExec | flagFoundExec | flagConflict | flagOwned | flagSigned | flagUnrecorded
)

const (
	flagBase = 1 << iota // there was a manifest
	flagRefuse
	flagSnapshot  // Snapshot follows
	flagFrom      // From follows
	flagRunsKnown = flagBase | flagRefuse | flagSnapshot | flagFrom
)

// Encode writes the journal.
func (j *Journal) Encode(to io.Writer) error {
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(to, sum), 64<<10)
	head, err := encodeHeader(j.Header)
	if err != nil {
		return err
	}
	b := append([]byte(nil), journalMagic...)
	b = appendString(b, string(head))
	b = appendString(b, j.Name)
	b = append(b, boolByte(j.Base.known)*flagBase|boolByte(j.Refuse)*flagRefuse|boolByte(j.Snapshot != "")*flagSnapshot|boolByte(j.From != "")*flagFrom)
	for _, snapshot := range []string{j.Snapshot, j.From} {
		if snapshot != "" {
			b = appendString(b, snapshot)
		}
	}
	b = append(b, j.Base.commit[:]...)
	b = binary.AppendUvarint(b, uint64(j.Base.files))
	b = binary.AppendUvarint(b, uint64(len(j.Areas)))
	for _, a := range j.Areas {
		b = appendString(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(j.Changes)))
	flush := func() { // w keeps its first error until Flush
		_, _ = w.Write(b)
		b = b[:0]
	}
	for i := range j.Changes {
		b = j.appendChange(b, i)
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(j.Dirs)))
	for _, x := range j.Dirs {
		b = appendString(b, x.Path)
		b = append(b, boolByte(x.Made))
		b = binary.AppendUvarint(b, uint64(x.Perm))
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(j.Tasks)))
	for _, t := range j.Tasks {
		b = append(b, byte(t.Kind))
		b = binary.AppendUvarint(b, uint64(t.At))
		flush()
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// Size returns the memory of the run, counted as in decodeJournal.
func (j *Journal) Size() int64 {
	sum := int64(len(j.Areas)+len(j.Changes)+len(j.Dirs)) * changeBytes
	for _, a := range j.Areas {
		sum += int64(len(a))
	}
	for i := range j.Changes {
		sum += int64(len(j.Changes[i].Path))
	}
	for i := range j.Dirs {
		sum += int64(len(j.Dirs[i].Path))
	}
	return sum
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (j *Journal) appendChange(b []byte, i int) []byte {
	c, s := &j.Changes[i], &j.Slots[i]
	git, signed := j.Signed[c.Path]
	flags := boolByte(c.Exec)*flagChangeExec | boolByte(c.Found.Exec)*flagFoundExec |
		boolByte(c.Conflict)*flagConflict | boolByte(c.Owned)*flagOwned | boolByte(signed)*flagSigned | boolByte(c.Unrecorded)*flagUnrecorded
	b = append(b, byte(c.Op), flags, byte(c.Found.Kind))
	b = appendString(b, c.Path)
	b = append(append(b, c.ID[:]...), c.FoundID[:]...)
	if signed {
		b = append(b, git[:]...)
	}
	b = binary.AppendUvarint(b, uint64(c.Origin))
	b = binary.AppendVarint(b, c.Found.Size)
	b = binary.AppendVarint(b, c.Found.Mtime)
	b = binary.AppendUvarint(b, uint64(s.Area))
	b = binary.AppendUvarint(b, s.Ino)
	b = binary.AppendVarint(b, s.Size)
	return binary.AppendVarint(b, s.Mtime)
}

// DecodeJournal reads a journal of size bytes whose run may take limit bytes of memory. It checks paths like those of a
// plan, because others can write where the journal lies.
func DecodeJournal(f io.ReaderAt, size, limit int64) (*Journal, error) {
	// A change is smaller in the file than in memory, and the rest has its own bounds.
	if most := limit + maxHeader + MaxAreas*safe.MaxPath; size > most {
		return nil, safe.Damaged("the journal has %d bytes; the limit is %d", size, most)
	}
	body := size - sha256.Size
	magic := make([]byte, len(journalMagic))
	if body < int64(len(magic)) {
		return nil, safe.Damaged("the journal has only %d bytes", size)
	}
	if _, err := f.ReadAt(magic, 0); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if string(magic) != journalMagic {
		return nil, safe.Damaged("the journal has an unknown format")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body)); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if _, err := f.ReadAt(want, body); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, safe.Damaged("wrong checksum of the journal")
	}
	d := &decoder{more: io.NewSectionReader(f, int64(len(magic)), body-int64(len(magic)))}
	j := &Journal{}
	var err error
	if j.Header, err = decodeHeader(d.bytes(maxHeader)); err != nil && d.err == nil {
		d.fail("the journal's header: %w", err)
	}
	if j.Name = d.string(255); d.err == nil && !ValidFolderName(j.Name) {
		d.fail("the journal names an invalid folder %q", j.Name)
	}
	flags := d.byte()
	if flags&^flagRunsKnown != 0 {
		d.fail("the journal has unknown flags %#x", flags)
	}
	j.Refuse = flags&flagRefuse != 0
	if flags&flagSnapshot != 0 {
		j.Snapshot = d.snapshot()
	}
	if flags&flagFrom != 0 {
		j.From = d.snapshot()
	}
	j.Base = Base{known: flags&flagBase != 0, commit: d.id(), files: d.length(math.MaxInt32)}
	hold := func(path string) {
		if limit -= changeBytes + int64(len(path)); limit < 0 {
			d.fail("the journal has too many changes")
		}
	}
	for range d.length(MaxAreas) {
		j.Areas = append(j.Areas, d.path(true))
		hold(j.Areas[len(j.Areas)-1])
	}
	// Allocate at once, but not for more than there can be: a growing list would temporarily take twice the memory.
	n := d.length(int(min(max(limit, 0)/changeBytes, body/int64(minChange))))
	j.Changes, j.Slots = make([]plan.Change, 0, n), make([]Slot, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		c, s := j.readChange(d)
		if i > 0 && d.err == nil && c.Path <= j.Changes[i-1].Path {
			d.fail("the journal's changes are not sorted")
		}
		j.Changes, j.Slots = append(j.Changes, c), append(j.Slots, s)
		hold(c.Path)
	}
	n = d.length(int(min(max(limit, 0)/changeBytes, body/minDirectory)))
	j.Dirs = make([]Directory, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		j.Dirs = append(j.Dirs, Directory{Path: d.path(false), Made: d.byte() == 1, Perm: uint32(d.uvarint(0o7777))})
		hold(j.Dirs[i].Path)
	}
	n = d.length(len(j.Changes) + len(j.Dirs))
	j.Tasks = make([]Task, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		j.Tasks = append(j.Tasks, j.readTask(d))
	}
	if d.err == nil && !d.end() {
		d.fail("the journal has trailing bytes")
	}
	if d.err != nil {
		return nil, d.err
	}
	return j, nil
}

func (j *Journal) readChange(d *decoder) (plan.Change, Slot) {
	var c plan.Change
	c.Op = plan.Op(d.byte())
	flags := d.byte()
	c.Found.Kind = plan.Kind(d.byte())
	if c.Op < plan.Create || c.Op > plan.Keep || flags&^flagChangesKnown != 0 || c.Found.Kind > plan.Other {
		d.fail("the journal has an unknown change")
	}
	c.Exec, c.Found.Exec = flags&flagChangeExec != 0, flags&flagFoundExec != 0
	c.Conflict, c.Owned, c.Unrecorded = flags&flagConflict != 0, flags&flagOwned != 0, flags&flagUnrecorded != 0
	c.Path = d.path(false)
	c.ID, c.FoundID = d.id(), d.id()
	if flags&flagSigned != 0 {
		if j.Signed == nil {
			j.Signed = make(map[string]plan.ID)
		}
		j.Signed[c.Path] = d.id()
	}
	c.Origin = uint16(d.uvarint(math.MaxUint16))
	c.Found.Size, c.Found.Mtime = d.varint(), d.varint()
	return c, Slot{
		Area: uint16(d.length(max(0, len(j.Areas)-1))), Ino: d.uvarint(math.MaxUint64), Size: d.varint(), Mtime: d.varint(),
	}
}

func (j *Journal) readTask(d *decoder) Task {
	t := Task{Kind: TaskKind(d.byte()), At: d.length(math.MaxInt32)}
	ok := false
	switch t.Kind {
	case TaskWrite:
		ok = t.At < len(j.Changes) && Writes(j.Changes[t.At].Op)
	case TaskRemove:
		ok = t.At < len(j.Changes) && j.Changes[t.At].Op == plan.Delete
	case TaskMkdir, TaskRmdir:
		ok = t.At < len(j.Dirs) && j.Dirs[t.At].Made == (t.Kind == TaskMkdir)
	}
	if !ok {
		d.fail("the journal has an invalid step")
	}
	return t
}

// path reads a path inside the data directory and outside our own folders. It may be empty only if empty is set.
func (d *decoder) path(empty bool) string {
	p := d.string(safe.MaxPath)
	if d.err == nil && (p != "" || !empty) {
		if err := safe.CheckPath(p); err != nil {
			d.fail("invalid path in the journal: %w", err)
		}
	}
	return p
}

// Slot is the place of a change in a staging folder: first of the wanted bytes, then of what they replaced.
type Slot struct {
	Ino   uint64 // of the file with the wanted bytes
	Size  int64
	Mtime int64
	Area  uint16
	// Took reports that this process started to move something from its place to the slot; unknown after a crash.
	Took bool
}

// Directory is one that the run makes, or one of ours that it removes if empty.
type Directory struct {
	Path string
	Made bool // to be made; otherwise to be removed
	Perm uint32
	// Kept reports that the directory to be made already existed, or that the one to be removed is not empty.
	Kept bool
}

// Task is one step of a run.
type Task struct {
	Kind TaskKind
	At   int // index in changes or dirs
}

// TaskKind is the kind of a step.
type TaskKind uint8

// The kinds of a step.
const (
	TaskWrite TaskKind = iota + 1
	TaskRemove
	TaskMkdir
	TaskRmdir
)

// PathOf returns the path of a step.
func (j *Journal) PathOf(t Task) string {
	if t.Kind == TaskWrite || t.Kind == TaskRemove {
		return j.Changes[t.At].Path
	}
	return j.Dirs[t.At].Path
}

// Edits yields the run's changes to the manifest.
func (j *Journal) Edits() Edits {
	dirs := j.editedDirs()
	c, k := 0, 0
	dir := func() *Directory { return &j.Dirs[dirs[k]] }
	return func() (Edit, bool) {
		for {
			switch {
			case c == len(j.Changes) && k == len(dirs):
				return Edit{}, false
			case c == len(j.Changes) || k < len(dirs) && dir().Path < j.Changes[c].Path:
				k++
				return j.Dirs[dirs[k-1]].edit(), true
			case k < len(dirs) && dir().Path == j.Changes[c].Path:
				// A path may be both file and directory: a written file counts, and a directory counts in place of a
				// removed file.
				if !Writes(j.Changes[c].Op) && dir().Made {
					c++
				} else {
					k++
				}
			case j.Changes[c].Unrecorded:
				c++
			default:
				c++
				return j.edit(c - 1), true
			}
		}
	}
}

func (j *Journal) edit(i int) Edit {
	c, s := &j.Changes[i], &j.Slots[i]
	rec := Record{Owned: plan.Owned{
		Path: c.Path, Want: c.ID, Have: c.ID, Size: s.Size, Mtime: s.Mtime, Exec: c.Exec, Origin: c.Origin,
	}}
	switch c.Op {
	case plan.Create, plan.Update:
		if git, ok := j.Signed[c.Path]; ok {
			rec.Want = git
		}
		return Edit{editSet, rec}
	case plan.Adopt:
		rec.Have, rec.Size, rec.Mtime = c.FoundID, c.Found.Size, c.Found.Mtime
		return Edit{editSet, rec}
	case plan.Keep:
		return Edit{editKeep, rec}
	default:
		return Edit{editDrop, rec}
	}
}

// SlotName is the staging name of a change.
func SlotName(at int) string { return strconv.Itoa(at) }

// AsideName is the staging name of an old file on a file system that cannot exchange two names.
func AsideName(at int) string { return strconv.Itoa(at) + ".old" }

// Writes reports whether an operation writes a file.
func Writes(op plan.Op) bool { return op == plan.Create || op == plan.Update }

// Moves reports whether an operation writes or removes a file.
func Moves(op plan.Op) bool { return Writes(op) || op == plan.Delete }

// Find returns the index of the change of a path, or -1.
func (j *Journal) Find(path string) int {
	l := j.Changes
	k := sort.Search(len(l), func(k int) bool { return l[k].Path >= path })
	if k == len(l) || l[k].Path != path {
		return -1
	}
	return k
}

// editedDirs returns the indexes in r.dirs of the directories whose records change, sorted by path.
func (j *Journal) editedDirs() []int32 {
	list := make([]int32, 0, len(j.Dirs))
	for i := range j.Dirs {
		if !j.Dirs[i].Kept {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return strings.Compare(j.Dirs[a].Path, j.Dirs[b].Path) })
	return list
}

func (x *Directory) edit() Edit {
	e := Edit{op: editDrop, Rec: Record{Owned: plan.Owned{Path: x.Path}}}
	if x.Made {
		e.op, e.Rec.Dir = editSet, true
	}
	return e
}

// Base identifies the manifest that a run starts from. The journal records it, so that a replay can check for it.
type Base struct {
	known  bool // there was a manifest
	commit plan.ID
	files  int
}

// BaseOf identifies a manifest.
func BaseOf(m *Manifest) Base {
	if m.f == nil {
		return Base{}
	}
	return Base{known: true, commit: m.header.Commit, files: m.header.Files}
}

var folderName = regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{7}(-\d{1,4})?(-undo)?$`)

// ValidFolderName reports whether s can be the name of a folder in lost+found.
func ValidFolderName(s string) bool { return folderName.MatchString(s) }

// snapshot reads the name of a snapshot.
func (d *decoder) snapshot() string {
	name := d.string(255)
	if d.err == nil && !ValidSnapshot(name) {
		d.fail("the journal names an invalid snapshot %q", name)
	}
	return name
}

var snapshotName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-(\d{8}-\d{6})$`)

const snapshotTime = "20060102-150405"

// SnapshotName returns the name of a snapshot, which is its id: the gateway's name and a time in UTC.
func SnapshotName(gateway string, at time.Time) string {
	return gateway[:min(len(gateway), 200)] + "-" + at.UTC().Format(snapshotTime)
}

// ValidSnapshot reports whether s has the form of SnapshotName.
func ValidSnapshot(s string) bool { return !TimeOfSnapshot(s).IsZero() }

// TimeOfSnapshot returns the time in the name of a snapshot, or zero for another name.
func TimeOfSnapshot(s string) time.Time {
	m := snapshotName.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.Parse(snapshotTime, m[1]) // zero if there is no such day
	return t
}
