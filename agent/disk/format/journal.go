package format

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"slices"
	"sort"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Journal has everything that another process needs to finish or undo a run, which applies one plan. Its file has a magic, the
// fields, and a SHA-256 of both. The file is renamed into place, so it is complete or missing; anything else was damaged later.
type Journal struct {
	Header        plan.Header        // of the manifest that the run ends with
	LostFolder    string             // the folder of the run in lost+found
	Areas         []string           // directories with .stoker/staging, "" first
	Changes       []plan.Change      // sorted by path
	Signed        map[string]plan.ID // see plan.Changes.Signed
	Slots         []Slot             // one per change
	Dirs          []Directory        // that steps create or remove
	Steps         []Step             // in order
	RefuseForeign bool               // roll back if the run displaces what the plan did not see
	Base          Base               // the manifest from before the run
	Snapshot      string             // the snapshot that keeps what the run displaces, or ""
	// Restores is the snapshot that the run restores, or "". Then the edits apply to its manifest, and not to the one from before
	// the run.
	Restores string
}

const journalMagic = "stokerj1"

// MaxAreas bounds the mounts that a data directory is made of.
const MaxAreas = 1 << 10

// changeBytes is the memory of a change with its slot and step, or of a directory, without its path.
const changeBytes = 192

// Minimum sizes in the journal.
const (
	minChange    = 3 + 2 + 2*len(plan.ID{}) + 7 // operation, flags, found kind; path; ids; numbers
	minDirectory = 4
)

const (
	flagChangeExec = 1 << iota
	flagFoundExec
	flagConflict
	flagOwned
	flagSigned // git's blob follows
	flagUnrecorded
	knownChangeFlags = flagChangeExec | flagFoundExec | flagConflict | flagOwned | flagSigned | flagUnrecorded
)

const (
	flagBase = 1 << iota // there was a manifest
	flagRefuse
	flagSnapshot  // Snapshot follows
	flagRestores  // Restores follows
	knownRunFlags = flagBase | flagRefuse | flagSnapshot | flagRestores
)

const (
	flagCreate = 1 << iota
	flagWhole
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
	b = appendString(b, j.LostFolder)
	b = append(b, boolByte(j.Base.known)*flagBase|boolByte(j.RefuseForeign)*flagRefuse|boolByte(j.Snapshot != "")*flagSnapshot|boolByte(j.Restores != "")*flagRestores)
	for _, snapshot := range []string{j.Snapshot, j.Restores} {
		if snapshot != "" {
			b = appendString(b, snapshot)
		}
	}
	b = append(b, j.Base.commit[:]...)
	b = binary.LittleEndian.AppendUint32(b, j.Base.sum)
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
		b = append(b, boolByte(x.Create)*flagCreate|boolByte(x.Whole)*flagWhole)
		b = binary.AppendUvarint(b, uint64(x.Perm))
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(j.Steps)))
	for _, step := range j.Steps {
		b = append(b, byte(step.Kind))
		b = binary.AppendUvarint(b, uint64(step.Index))
		flush()
	}
	flush()
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// Size returns the memory of the run in bytes, counted as DecodeJournal counts it.
func (j *Journal) Size() int64 {
	var sum int64
	for _, a := range j.Areas {
		sum += heldBytes(a)
	}
	for i := range j.Changes {
		sum += heldBytes(j.Changes[i].Path)
	}
	for i := range j.Dirs {
		sum += heldBytes(j.Dirs[i].Path)
	}
	return sum
}

// heldBytes returns the memory of an area, a change or a directory with this path.
func heldBytes(path string) int64 { return changeBytes + int64(len(path)) }

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

// Slot is the place of a change in a staging folder. First it has the file with the wanted bytes, then what this file replaced.
// Ino, Size and Mtime are those of the file with the wanted bytes.
type Slot struct {
	Ino   uint64
	Size  int64
	Mtime int64
	Area  uint16
	// Displaced reports that this process may have moved something from its place to the slot. It is unknown after a crash.
	Displaced bool
	// Tree is 1 + the index in Journal.Dirs of the directory that is staged whole and has the file, or 0. It is not in the file.
	Tree int32
}

// Directory is a directory that the run creates, or one that the agent created and the run removes if it is empty.
type Directory struct {
	Path   string
	Perm   uint32
	Tree   int32 // like Slot.Tree, also of the directory that is staged whole
	Area   uint16
	Create bool // otherwise the run removes it
	// Whole reports that the directory does not exist, and is staged with all that the run creates in it.
	Whole bool
	// Kept reports that the directory to create already existed, or that the one to remove is not empty.
	Kept bool
}

// Step is one operation of a run on a name.
type Step struct {
	Kind  StepKind
	Index int32 // in Journal.Changes or Journal.Dirs
}

// StepKind is the kind of a step.
type StepKind uint8

// The kinds of a step.
const (
	StepWrite StepKind = iota + 1
	StepRemove
	StepMkdir
	StepRmdir
)

// PathOf returns the path of a step.
func (j *Journal) PathOf(s Step) string {
	if s.Kind == StepWrite || s.Kind == StepRemove {
		return j.Changes[s.Index].Path
	}
	return j.Dirs[s.Index].Path
}

// In returns the range of the changes in a directory, at any depth.
func (j *Journal) In(dir string) (from, to int) {
	l := j.Changes
	from = sort.Search(len(l), func(k int) bool { return l[k].Path >= dir+"/" })
	to = from + sort.Search(len(l)-from, func(k int) bool { return !strings.HasPrefix(l[from+k].Path, dir+"/") })
	return from, to
}

// LinkTrees sets the Tree of every slot and directory, and the Area of these directories, from the directories that are staged whole. Each has
// a file to write, and none is in another or twice; otherwise the error is ErrDamaged. So LinkTrees visits each change at most twice.
func (j *Journal) LinkTrees() error {
	trees := map[string]int32{}
	for k := range j.Dirs {
		x := &j.Dirs[k]
		if !x.Whole {
			continue
		}
		trees[x.Path] = int32(k) + 1
		alone := false
		from, to := j.In(x.Path)
		for i := from; i < to; i++ {
			if Writes(j.Changes[i].Op) {
				if alone = j.Slots[i].Tree == 0; !alone {
					break
				}
				j.Slots[i].Tree, x.Area = int32(k)+1, j.Slots[i].Area
			}
		}
		if !alone {
			return safe.Damaged("the journal stages %q twice, or without a file", x.Path)
		}
	}
	if len(trees) == 0 {
		return nil
	}
	for k := range j.Dirs {
		x := &j.Dirs[k]
		for dir := x.Path; x.Create && x.Tree == 0 && dir != ""; dir, _ = safe.Split(dir) {
			x.Tree = trees[dir]
		}
		if x.Tree > 0 {
			x.Area = j.Dirs[x.Tree-1].Area
		}
	}
	return nil
}

// Edits yields the run's changes to the manifest. If a path is in both Changes and Dirs, Edits yields at most one edit: the
// file's if the run writes the file or removes the directory, otherwise the directory's.
func (j *Journal) Edits() Edits {
	return func(yield func(Edit) bool) {
		dirs := j.editedDirs()
		for i := range j.Changes {
			c := &j.Changes[i]
			for ; len(dirs) > 0 && dirs[0].Path < c.Path; dirs = dirs[1:] {
				if !yield(dirs[0].edit()) {
					return
				}
			}
			for len(dirs) > 0 && dirs[0].Path == c.Path && (Writes(c.Op) || !dirs[0].Create) {
				dirs = dirs[1:] // the file counts
			}
			if len(dirs) > 0 && dirs[0].Path == c.Path {
				continue // the directory counts
			}
			if !c.Unrecorded && !yield(j.edit(i)) {
				return
			}
		}
		for _, x := range dirs {
			if !yield(x.edit()) {
				return
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
		return Edit{editSource, rec}
	default:
		return Edit{editDrop, rec}
	}
}

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

// editedDirs returns the directories whose records change, sorted by path.
func (j *Journal) editedDirs() []*Directory {
	list := make([]*Directory, 0, len(j.Dirs))
	for i := range j.Dirs {
		if !j.Dirs[i].Kept {
			list = append(list, &j.Dirs[i])
		}
	}
	slices.SortFunc(list, func(a, b *Directory) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func (x *Directory) edit() Edit {
	e := Edit{op: editDrop, Rec: Record{Owned: plan.Owned{Path: x.Path}}}
	if x.Create {
		e.op, e.Rec.Dir = editSet, true
	}
	return e
}

// Base identifies the manifest that a run starts with, so that recovery can check for it.
type Base struct {
	known  bool // there was a manifest
	commit plan.ID
	sum    uint32 // the checksum of the manifest's header and index
}

// BaseOf identifies a manifest.
func BaseOf(m *Manifest) Base {
	if m.f == nil {
		return Base{}
	}
	return Base{known: true, commit: m.header.Commit, sum: m.sum}
}

// Commit returns the commit of the manifest; zero if there was none.
func (b Base) Commit() plan.ID { return b.commit }

// StartsOrEndsWith reports whether m is the manifest from before the run, or the one that the run ends with. If the journal's header
// says complete and m is not, m does not count as the latter: a run that missed staged files wrote it, and it may lack records.
func (j *Journal) StartsOrEndsWith(m *Manifest) bool {
	ends := !m.Missing() && m.Header().Commit == j.Header.Commit && (m.Header().Complete || !j.Header.Complete)
	return ends || BaseOf(m) == j.Base
}
