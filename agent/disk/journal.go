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

	"stoker.io/stoker/agent/plan"
)

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

func (r *run) encode(to io.Writer) error {
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(to, sum), 64<<10)
	head, err := encodeHeader(r.header)
	if err != nil {
		return err
	}
	b := append([]byte(nil), journalMagic...)
	b = appendString(b, string(head))
	b = appendString(b, r.name)
	b = append(b, boolByte(r.base.known)*flagBase|boolByte(r.refuse)*flagRefuse)
	b = append(b, r.base.commit[:]...)
	b = binary.AppendUvarint(b, uint64(r.base.files))
	b = binary.AppendUvarint(b, uint64(len(r.areas)))
	for _, a := range r.areas {
		b = appendString(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(r.changes)))
	flush := func() { // w keeps its first error until Flush
		_, _ = w.Write(b)
		b = b[:0]
	}
	for i := range r.changes {
		b = r.appendChange(b, i)
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(r.dirs)))
	for _, x := range r.dirs {
		b = appendString(b, x.path)
		b = append(b, boolByte(x.made))
		b = binary.AppendUvarint(b, uint64(x.perm))
		flush()
	}
	b = binary.AppendUvarint(b, uint64(len(r.tasks)))
	for _, t := range r.tasks {
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
func (r *run) size() int64 {
	sum := int64(len(r.areas)+len(r.changes)+len(r.dirs)) * changeBytes
	for _, a := range r.areas {
		sum += int64(len(a))
	}
	for i := range r.changes {
		sum += int64(len(r.changes[i].Path))
	}
	for i := range r.dirs {
		sum += int64(len(r.dirs[i].path))
	}
	return sum
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (r *run) appendChange(b []byte, i int) []byte {
	c, s := &r.changes[i], &r.slots[i]
	git, signed := r.signed[c.Path]
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
func (d *Dir) readJournal(name string) (*run, error) {
	f, fi, err := d.own.openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	// A change is smaller in the file than in memory, and the rest has its own bounds.
	if limit := d.o.maxRun() + maxHeader + maxAreas*maxPath; fi.Size() > limit {
		return nil, damaged("the %s has %d bytes, more than the %d it may have", name, fi.Size(), limit)
	}
	return decodeJournal(f, fi.Size(), d.o.maxRun())
}

// decodeJournal reads a journal of size bytes whose run may take limit bytes of memory. It checks paths like those of a
// plan, because others can write where the journal lies.
func decodeJournal(f io.ReaderAt, size, limit int64) (*run, error) {
	body := size - sha256.Size
	magic := make([]byte, len(journalMagic))
	if body < int64(len(magic)) {
		return nil, damaged("the journal has %d bytes, fewer than an empty one", size)
	}
	if _, err := f.ReadAt(magic, 0); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if string(magic) != journalMagic {
		return nil, damaged("the journal does not start as one of this version")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body)); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if _, err := f.ReadAt(want, body); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, damaged("the journal has another checksum")
	}
	d := &decoder{more: io.NewSectionReader(f, int64(len(magic)), body-int64(len(magic)))}
	r := &run{}
	var err error
	if r.header, err = decodeHeader(d.bytes(maxHeader)); err != nil && d.err == nil {
		d.fail("the journal's header: %w", err)
	}
	if r.name = d.string(255); d.err == nil && !validRunName(r.name) {
		d.fail("the journal names a bad folder %q", r.name)
	}
	flags := d.byte()
	if flags&^flagRunsKnown != 0 {
		d.fail("the journal has unknown flags %#x", flags)
	}
	r.refuse = flags&flagRefuse != 0
	r.base = base{known: flags&flagBase != 0, commit: d.id(), files: d.length(math.MaxInt32)}
	hold := func(path string) {
		if limit -= changeBytes + int64(len(path)); limit < 0 {
			d.fail("the journal has more changes than an agent makes")
		}
	}
	for range d.length(maxAreas) {
		r.areas = append(r.areas, d.path(true))
		hold(r.areas[len(r.areas)-1])
	}
	// Allocate at once, but not for more than there can be: a growing list would temporarily take twice the memory.
	n := d.length(int(min(max(limit, 0)/changeBytes, body/int64(minChange))))
	r.changes, r.slots = make([]plan.Change, 0, n), make([]slot, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		c, s := r.readChange(d)
		if i > 0 && d.err == nil && c.Path <= r.changes[i-1].Path {
			d.fail("the journal's changes are not sorted")
		}
		r.changes, r.slots = append(r.changes, c), append(r.slots, s)
		hold(c.Path)
	}
	n = d.length(int(min(max(limit, 0)/changeBytes, body/minDirectory)))
	r.dirs = make([]directory, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		r.dirs = append(r.dirs, directory{path: d.path(false), made: d.byte() == 1, perm: uint32(d.uvarint(0o7777))})
		hold(r.dirs[i].path)
	}
	n = d.length(len(r.changes) + len(r.dirs))
	r.tasks = make([]task, 0, n)
	for i := 0; i < n && d.err == nil; i++ {
		r.tasks = append(r.tasks, r.readTask(d))
	}
	if d.err == nil && !d.end() {
		d.fail("the journal is longer than it says")
	}
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

func (r *run) readChange(d *decoder) (plan.Change, slot) {
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
		if r.signed == nil {
			r.signed = make(map[string]plan.ID)
		}
		r.signed[c.Path] = d.id()
	}
	c.Origin = uint16(d.uvarint(math.MaxUint16))
	c.Found.Size, c.Found.Mtime = d.varint(), d.varint()
	return c, slot{
		area: uint16(d.length(max(0, len(r.areas)-1))), ino: d.uvarint(math.MaxUint64), size: d.varint(), mtime: d.varint(),
	}
}

func (r *run) readTask(d *decoder) task {
	t := task{kind: taskKind(d.byte()), at: d.length(math.MaxInt32)}
	ok := false
	switch t.kind {
	case taskWrite:
		ok = t.at < len(r.changes) && writes(r.changes[t.at].Op)
	case taskRemove:
		ok = t.at < len(r.changes) && r.changes[t.at].Op == plan.Delete
	case taskMkdir, taskRmdir:
		ok = t.at < len(r.dirs) && r.dirs[t.at].made == (t.kind == taskMkdir)
	}
	if !ok {
		d.fail("the journal has a step that fits nothing")
	}
	return t
}

// path reads a path inside the data directory and outside our own folders. It may be empty only if empty is set.
func (d *decoder) path(empty bool) string {
	p := d.string(maxPath)
	if d.err == nil && (p != "" || !empty) {
		if err := checkPath(p); err != nil {
			d.fail("the journal has a bad path: %w", err)
		}
	}
	return p
}
