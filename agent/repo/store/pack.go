package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"stoker.io/stoker/agent/plan"
)

// pack is an open pack with its index. The base of each of its deltas is in the same pack.
type pack struct {
	name string // without extension
	file *os.File
	size int64 // bytes, with the trailer
	idx  *index
	seq  int64 // position in the store: later packs have higher numbers
	refs atomic.Int32
	// partial means that blobs of the pack's trees are missing.
	partial bool
}

// openPack opens name.pack and name.idx in root and checks that they belong together.
func openPack(root *os.Root, name string) (*pack, error) {
	f, err := root.Open(name + packExt)
	if err != nil {
		return nil, asDiskError(err)
	}
	p := &pack{name: name, file: f}
	if err := p.check(root); err != nil {
		_ = p.close()
		return nil, err
	}
	_, err = root.Lstat(name + partialExt)
	p.partial = err == nil
	p.refs.Store(1)
	return p, nil
}

func (p *pack) check(root *os.Root) error {
	st, err := p.file.Stat()
	if err != nil {
		return asDiskError(err)
	}
	if !st.Mode().IsRegular() || st.Size() < packHeaderSize+packTrailerSize {
		return corrupt("a pack has only %d bytes or is not a file", st.Size())
	}
	p.size = st.Size()
	var head [packHeaderSize]byte
	if _, err := p.file.ReadAt(head[:], 0); err != nil {
		return asDiskError(err)
	}
	trailer, err := trailerOf(p.file, p.size)
	if err != nil {
		return err
	}
	idx, err := root.Open(p.name + indexExt)
	if err != nil {
		return asDiskError(err)
	}
	defer func() { _ = idx.Close() }() // a mapping outlives its file
	if p.idx, err = openIndex(idx, trailer); err != nil {
		return err
	}
	if !bytes.Equal(head[:], PackHeader(p.idx.count)) {
		return corrupt("the header of a pack does not fit its index")
	}
	return nil
}

// retain adds a user of the pack. The last release closes it.
func (p *pack) retain() { p.refs.Add(1) }

func (p *pack) release() {
	if p.refs.Add(-1) == 0 {
		_ = p.close()
	}
}

func (p *pack) close() error {
	var err error
	if p.idx != nil {
		err = p.idx.close()
	}
	return errors.Join(err, p.file.Close())
}

// find returns the offset of an object.
func (p *pack) find(id plan.ID) (int64, bool, error) {
	off, ok, err := p.idx.find(id)
	if ok && (off < packHeaderSize || off >= p.size-packTrailerSize) {
		return 0, false, corrupt("an index points behind its pack")
	}
	return off, ok, err
}

// packedObject locates an object in a pack: a whole entry, and the deltas to apply to it.
type packedObject struct {
	pack   *pack
	kind   kind
	off    int64   // of the whole entry
	deltas []int64 // offsets of the deltas; the one to apply first is the last
	size   int64   // of the content at off
}

// locate follows the chain of deltas that starts at off.
func (p *pack) locate(f *inflater, off int64, l *Limits) (packedObject, error) {
	o := packedObject{pack: p}
	for {
		e, err := f.openEntry(p.file, off, p.size-packTrailerSize)
		if err != nil {
			return o, err
		}
		if err := l.checkSize(e.kind, e.size); err != nil {
			return o, err
		}
		next := off - e.distance
		switch e.kind {
		case kindOffset:
			if e.distance <= 0 || next < packHeaderSize {
				return o, corrupt("the base of a delta lies outside its pack")
			}
		case kindRef:
			var ok bool
			if next, ok, err = p.find(e.baseID); err != nil {
				return o, err
			} else if !ok {
				return o, corrupt("the base %s of a delta is not in its pack", e.baseID)
			}
		default:
			o.kind, o.off, o.size = e.kind, off, e.size
			if len(o.deltas) > 0 {
				return o, l.checkDeltaSize(o.kind, o.size)
			}
			return o, nil
		}
		if len(o.deltas) == l.DeltaDepth {
			return o, corrupt("a chain of deltas is longer than %d", l.DeltaDepth)
		}
		o.deltas, off = append(o.deltas, off), next
	}
}

// writeTo writes the content of o to w. It streams a whole entry. To apply deltas, it holds two objects at a time in the scratch.
func (o *packedObject) writeTo(w io.Writer, f *inflater, s *scratch, l *Limits) error {
	end := o.pack.size - packTrailerSize
	if _, err := f.openEntry(o.pack.file, o.off, end); err != nil {
		return err
	}
	if len(o.deltas) == 0 {
		return f.copyContent(w, f.br, o.size)
	}
	base, err := s.alloc(o.size)
	if err != nil {
		return err
	}
	defer func() { base.free() }()
	if err := f.copyContent(base, f.br, o.size); err != nil {
		return err
	}
	for i := len(o.deltas) - 1; i >= 0; i-- {
		e, err := f.openEntry(o.pack.file, o.deltas[i], end)
		if err != nil {
			return err
		}
		d, err := f.openDelta(f.br, e)
		if err != nil {
			return err
		}
		if err := l.checkDeltaSize(o.kind, d.size); err != nil {
			return err
		}
		if i == 0 {
			return d.apply(w, base, f.buf)
		}
		next, err := s.alloc(d.size)
		if err != nil {
			return err
		}
		err = d.apply(next, base, f.buf)
		base.free()
		base = next
		if err != nil {
			return err
		}
	}
	return nil
}

// resultSize returns the length of the content that writeTo writes.
func (o *packedObject) resultSize(f *inflater) (int64, error) {
	if len(o.deltas) == 0 {
		return o.size, nil
	}
	e, err := f.openEntry(o.pack.file, o.deltas[0], o.pack.size-packTrailerSize)
	if err != nil {
		return 0, err
	}
	d, err := f.openDelta(f.br, e)
	if err != nil {
		return 0, err
	}
	return d.size, nil
}

// parsePackHeader returns the number of objects that the header of a pack announces.
func parsePackHeader(head []byte) (int64, error) {
	if string(head[:4]) != packMagic {
		return 0, corrupt("the answer is not a pack: it does not start with %s", packMagic) // what it starts with may be a secret
	}
	if v := binary.BigEndian.Uint32(head[4:]); v != packVersion {
		return 0, corrupt("the pack has the unknown version %d", v)
	}
	return int64(binary.BigEndian.Uint32(head[8:])), nil
}
