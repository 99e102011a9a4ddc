package format

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"
	"iter"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Edit is a change to one record of the manifest.
type Edit struct {
	op  editOp
	Rec Record // for editDrop, only the Path counts
}

type editOp uint8

const (
	editSet  editOp = iota + 1
	editDrop        // drops the record, if any
	// editSource sets Want, Exec and Origin of the record of a file. It makes no record for a path without one, and drops that of a directory.
	editSource
)

// Set returns an edit that sets the record of a file.
func Set(file plan.Owned) Edit { return Edit{editSet, Record{Owned: file}} }

// Apply returns the record that replaces old, which may be nil; false means no record.
func (e *Edit) Apply(old *Record) (Record, bool) {
	switch {
	case e.op == editSet:
		return e.Rec, true
	case e.op == editSource && old != nil && !old.Dir:
		r := *old
		r.Want, r.Exec, r.Origin = e.Rec.Want, e.Rec.Exec, e.Rec.Origin
		return r, true
	default:
		return Record{}, false
	}
}

// Edits yields edits sorted by path, at most one for each path.
type Edits = iter.Seq[Edit]

// NoEdits yields no edit.
func NoEdits(func(Edit) bool) {}

// Merge writes a new manifest to w: old with edits. It copies most blocks without edits unchanged, so that a small change costs
// no more than copying the file.
func Merge(w io.Writer, h plan.Header, old *Manifest, edits Edits) error {
	next, stop := iter.Pull(edits)
	defer stop()
	mw := newManifestWriter(w)
	var buf []byte
	var list []Record
	e, more := next()
	for i := range old.blocks {
		last := i+1 == len(old.blocks)
		within := more && (last || e.Rec.Path < old.blocks[i+1].first)
		if !within && mw.flushable() {
			b, err := old.read(i, &buf)
			if err != nil {
				return err
			}
			mw.flush()
			mw.addBlock(&old.blocks[i], b)
			continue
		}
		var err error
		if list, err = old.decode(i, &buf, list[:0]); err != nil {
			return err
		}
		mw.limit = 2 * blockSize // a block may grow, so that the next ones keep their borders
		for k := range list {
			r := &list[k]
			for more && e.Rec.Path < r.Path {
				mw.edit(&e, nil)
				e, more = next()
			}
			if more && e.Rec.Path == r.Path {
				mw.edit(&e, r)
				e, more = next()
				continue
			}
			mw.put(r)
		}
		for more && !last && e.Rec.Path < old.blocks[i+1].first {
			mw.edit(&e, nil)
			e, more = next()
		}
	}
	mw.limit = blockSize
	for more {
		mw.edit(&e, nil)
		e, more = next()
	}
	return mw.finish(h)
}

// manifestWriter writes a manifest front to back. It keeps its first error until finish.
type manifestWriter struct {
	w      *bufio.Writer
	blocks []block
	off    int64
	cur    block
	b      []byte // the block being filled
	limit  int    // size at which the block ends
	paths  int    // bytes of its paths
	prev   string
	err    error
}

func newManifestWriter(w io.Writer) *manifestWriter {
	mw := &manifestWriter{w: bufio.NewWriterSize(w, 4*blockSize), b: make([]byte, 0, 2*blockSize), limit: blockSize}
	mw.write([]byte(manifestMagic))
	return mw
}

func (w *manifestWriter) write(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
	w.off += int64(len(b))
}

func (w *manifestWriter) edit(e *Edit, old *Record) {
	if r, ok := e.Apply(old); ok {
		w.put(&r)
	}
}

// put adds a record. Calls must be sorted.
func (w *manifestWriter) put(r *Record) {
	if len(w.b) == 0 {
		w.cur, w.prev, w.paths = block{first: r.Path}, "", 0
	}
	w.b = appendRecord(w.b, w.prev, r)
	w.prev = r.Path
	if r.Dir {
		w.cur.dirs++
	} else {
		w.cur.files++
	}
	if w.paths += len(r.Path); len(w.b) >= w.limit || w.paths >= maxBlockPaths-safe.MaxPath {
		w.flush()
	}
}

// flushable reports whether a block may end here. It prevents small blocks, which would accumulate.
func (w *manifestWriter) flushable() bool { return len(w.b) == 0 || len(w.b) >= blockSize/4 }

func (w *manifestWriter) flush() {
	if len(w.b) == 0 {
		return
	}
	w.cur.sum = crc32.Checksum(w.b, castagnoli)
	w.addBlock(&w.cur, w.b)
	w.b = w.b[:0]
}

// addBlock adds a whole block with the bytes b.
func (w *manifestWriter) addBlock(x *block, b []byte) {
	n := *x
	n.off, n.size = w.off, len(b)
	w.blocks = append(w.blocks, n)
	w.write(b)
}

func (w *manifestWriter) finish(h plan.Header) error {
	w.flush()
	h.Files = 0
	var index []byte
	for i := range w.blocks {
		x := &w.blocks[i]
		h.Files += x.files
		index = appendString(index, x.first)
		index = binary.AppendUvarint(index, uint64(x.size))
		index = binary.LittleEndian.AppendUint32(index, x.sum)
		index = binary.AppendUvarint(index, uint64(x.files))
		index = binary.AppendUvarint(index, uint64(x.dirs))
	}
	head, err := encodeHeader(h)
	if err != nil {
		return err
	}
	foot := binary.LittleEndian.AppendUint64(nil, uint64(w.off))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(len(head)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(len(index)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(len(w.blocks)))
	sum := crc32.Update(crc32.Checksum(append(head[:len(head):len(head)], index...), castagnoli), castagnoli, foot)
	foot = append(binary.LittleEndian.AppendUint32(foot, sum), manifestMagic...)
	w.write(head)
	w.write(index)
	w.write(foot)
	if w.err != nil {
		return w.err
	}
	return w.w.Flush()
}
