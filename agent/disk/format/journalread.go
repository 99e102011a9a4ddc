package format

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// DecodeJournal reads a journal of size bytes whose run may take limit bytes of memory. It checks the paths like those of a
// plan, because other programs can write to .stoker. If the file is not such a journal, the error is ErrDamaged.
func DecodeJournal(f io.ReaderAt, size, limit int64) (*Journal, error) {
	d, err := openJournal(f, size, limit)
	if err != nil {
		return nil, err
	}
	j := &Journal{}
	j.readHead(d.decoder)
	for range d.length(MaxAreas) {
		j.Areas = append(j.Areas, d.path(true))
		d.reserve(j.Areas[len(j.Areas)-1])
	}
	// Allocate at once, but not for more than there can be: a growing list would temporarily take twice the memory.
	n := d.count(minChange)
	j.Changes, j.Slots = make([]plan.Change, 0, n), make([]Slot, 0, n)
	for c := range d.changes(n, len(j.Areas)) {
		if !c.git.IsZero() {
			if j.Signed == nil {
				j.Signed = make(map[string]plan.ID)
			}
			j.Signed[c.Path] = c.git
		}
		j.Changes, j.Slots = append(j.Changes, c.Change), append(j.Slots, c.slot)
		d.reserve(c.Path)
	}
	n = d.count(minDirectory)
	j.Dirs = make([]Directory, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		x := Directory{Path: d.path(false)}
		flags := d.byte()
		x.Create, x.Whole, x.Perm = flags&flagCreate != 0, flags&flagWhole != 0, uint32(d.uvarint(0o7777))
		if d.err == nil && (flags > flagCreate|flagWhole || x.Whole && !x.Create) {
			d.fail("the journal has an unknown directory")
		}
		j.Dirs = append(j.Dirs, x)
		d.reserve(j.Dirs[i].Path)
	}
	n = d.length(len(j.Changes) + len(j.Dirs))
	j.Steps = make([]Step, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		j.Steps = append(j.Steps, j.readStep(d.decoder))
	}
	if d.err == nil && !d.end() {
		d.fail("the journal has trailing bytes")
	}
	if d.err != nil {
		return nil, d.err
	}
	return j, j.LinkTrees()
}

// ReadJournal reads a journal without holding its changes in memory: it calls each for one after the other. The result has only
// what precedes the areas in the file. If each is nil, ReadJournal decodes no more than that.
func ReadJournal(f io.ReaderAt, size, limit int64, each func(i int, c plan.Change) error) (*Journal, error) {
	d, err := openJournal(f, size, limit)
	if err != nil {
		return nil, err
	}
	j := &Journal{}
	j.readHead(d.decoder)
	if each != nil {
		areas := d.length(MaxAreas)
		for range areas {
			d.path(true)
		}
		i := 0
		for c := range d.changes(d.count(minChange), areas) {
			if err := each(i, c.Change); err != nil {
				return nil, err
			}
			i++
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	return j, nil
}

// journalReader decodes a journal whose checksum is right.
type journalReader struct {
	*decoder
	body  int64 // bytes of the journal before the checksum
	limit int64 // bytes of memory that may still be held
}

// openJournal verifies the size, the magic and the checksum of a journal.
func openJournal(f io.ReaderAt, size, limit int64) (*journalReader, error) {
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
	return &journalReader{d, body, limit}, nil
}

// reserve counts the memory of a path and what belongs to it.
func (d *journalReader) reserve(path string) {
	if d.limit -= heldBytes(path); d.limit < 0 {
		d.fail("the journal has too many changes")
	}
}

// count reads the length of a list whose elements take at least size bytes each.
func (d *journalReader) count(size int) int {
	return d.length(int(min(max(d.limit, 0)/changeBytes, d.body/int64(size))))
}

// journalChange is a change in the journal.
type journalChange struct {
	plan.Change
	slot Slot
	git  plan.ID // git's blob, if the change writes another signature
}

// changes yields the changes of a journal, up to the first that is damaged.
func (d *journalReader) changes(n, areas int) iter.Seq[journalChange] {
	return func(yield func(journalChange) bool) {
		last := ""
		for i := range n {
			c := readChange(d.decoder, areas)
			if i > 0 && d.err == nil && c.Path <= last {
				d.fail("the journal's changes are not sorted")
			}
			if d.err != nil || !yield(c) {
				return
			}
			last = c.Path
		}
	}
}

// readHead reads what precedes the areas.
func (j *Journal) readHead(d *decoder) {
	var err error
	if j.Header, err = decodeHeader(d.bytes(maxHeader)); err != nil && d.err == nil {
		d.fail("the journal's header: %w", err)
	}
	if j.LostFolder = d.string(255); d.err == nil && !ValidLostFoundName(j.LostFolder) {
		d.fail("the journal names an invalid folder %q", j.LostFolder)
	}
	flags := d.byte()
	if flags&^knownRunFlags != 0 {
		d.fail("the journal has unknown flags %#x", flags)
	}
	j.RefuseForeign = flags&flagRefuse != 0
	if flags&flagSnapshot != 0 {
		j.Snapshot = d.snapshot()
	}
	if flags&flagRestores != 0 {
		j.Restores = d.snapshot()
	}
	j.Base = Base{known: flags&flagBase != 0, commit: d.id(), sum: d.uint32()}
}

func readChange(d *decoder, areas int) (c journalChange) {
	c.Op = plan.Op(d.byte())
	flags := d.byte()
	c.Found.Kind = plan.Kind(d.byte())
	if c.Op < plan.Create || c.Op > plan.Keep || flags&^knownChangeFlags != 0 || c.Found.Kind > plan.Other {
		d.fail("the journal has an unknown change")
	}
	c.Exec, c.Found.Exec = flags&flagChangeExec != 0, flags&flagFoundExec != 0
	c.Conflict, c.Owned, c.Unrecorded = flags&flagConflict != 0, flags&flagOwned != 0, flags&flagUnrecorded != 0
	c.Path = d.path(false)
	c.ID, c.FoundID = d.id(), d.id()
	if flags&flagSigned != 0 {
		c.git = d.id()
	}
	c.Origin = uint16(d.uvarint(math.MaxUint16))
	c.Found.Size, c.Found.Mtime = d.varint(), d.varint()
	c.slot = Slot{Area: uint16(d.length(max(0, areas-1))), Ino: d.uvarint(math.MaxUint64), Size: d.varint(), Mtime: d.varint()}
	return c
}

func (j *Journal) readStep(d *decoder) Step {
	step := Step{Kind: StepKind(d.byte()), Index: int32(d.length(math.MaxInt32))}
	ok := false
	switch step.Kind {
	case StepWrite:
		ok = int(step.Index) < len(j.Changes) && Writes(j.Changes[step.Index].Op)
	case StepRemove:
		ok = int(step.Index) < len(j.Changes) && j.Changes[step.Index].Op == plan.Delete
	case StepMkdir, StepRmdir:
		ok = int(step.Index) < len(j.Dirs) && j.Dirs[step.Index].Create == (step.Kind == StepMkdir)
	}
	if !ok {
		d.fail("the journal has an invalid step")
	}
	return step
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

// snapshot reads the name of a snapshot.
func (d *decoder) snapshot() string {
	name := d.string(255)
	if d.err == nil && !syntax.IsSnapshotID(name) {
		d.fail("the journal names an invalid snapshot %q", name)
	}
	return name
}
