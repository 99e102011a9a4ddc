package store

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sort"

	"stoker.io/stoker/agent/plan"
)

// The index of a pack, version 2 of git's format: fan-out, names, checksums, offsets, wide offsets, two trailers.
const (
	indexMagic    = "\xfftOc"
	indexHeader   = 8
	indexFan      = 256 * 4
	indexNames    = indexHeader + indexFan
	wideOffset    = 1 << 31
	indexPerEntry = 20 + 4 + 4
)

// index finds the objects of one pack. Its bytes are mapped, so that they count as page cache and not as memory.
type index struct {
	data  []byte
	count int
	wide  int // number of offsets of 8 bytes
	unmap func() error
}

// errIndexVersion is in the chain of the error for an index of another version than 2, which git has written since 2008.
var errIndexVersion = fmt.Errorf("%w: the index of a pack is not of version 2", ErrCorrupt)

// openIndex maps an index and checks its shape, its own checksum, and that it belongs to the pack with that trailer.
func openIndex(f *os.File, trailer [20]byte) (*index, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, onDisk(err)
	}
	if st.Size() < indexNames+2*packTrailerSize {
		return nil, corrupt("an index has only %d bytes", st.Size())
	}
	data, unmap, err := mapFile(f, st.Size())
	if err != nil {
		return nil, onDisk(err)
	}
	x := &index{data: data, unmap: unmap}
	if err := x.guard(func() error { return x.check(trailer) }); err != nil {
		_ = x.close()
		return nil, err
	}
	return x, nil
}

func (x *index) close() error {
	if x.unmap == nil {
		return nil
	}
	unmap := x.unmap
	x.data, x.unmap = nil, nil
	return unmap()
}

func (x *index) check(trailer [20]byte) error {
	d := x.data
	if string(d[:4]) != indexMagic || binary.BigEndian.Uint32(d[4:]) != 2 {
		return errIndexVersion
	}
	last := uint32(0)
	for i := range 256 {
		n := binary.BigEndian.Uint32(d[indexHeader+4*i:])
		if n < last {
			return corrupt("the fan-out of an index goes backwards")
		}
		last = n
	}
	rest := int64(len(d)) - indexNames - int64(last)*indexPerEntry - 2*packTrailerSize
	if rest < 0 || rest%8 != 0 || rest/8 > int64(last) {
		return corrupt("an index has %d bytes for %d objects", len(d), last)
	}
	x.count, x.wide = int(last), int(rest/8)
	end := len(d) - packTrailerSize
	if !bytes.Equal(d[end-packTrailerSize:end], trailer[:]) {
		return corrupt("an index belongs to another pack")
	}
	if sum := sha1.Sum(d[:end]); !bytes.Equal(sum[:], d[end:]) {
		return corrupt("the checksum of an index is wrong")
	}
	return nil
}

// find returns where in the pack an object starts.
func (x *index) find(id plan.ID) (off int64, found bool, err error) {
	err = x.guard(func() error {
		lo, hi := 0, int(x.fan(id[0]))
		if id[0] > 0 {
			lo = int(x.fan(id[0] - 1))
		}
		if lo > hi || hi > x.count {
			return corrupt("the fan-out of an index goes backwards")
		}
		i := lo + sort.Search(hi-lo, func(i int) bool { return bytes.Compare(x.name(lo+i), id[:]) >= 0 })
		if i == hi || !bytes.Equal(x.name(i), id[:]) {
			return nil
		}
		found = true
		off, err = x.offset(i)
		return err
	})
	return off, found && err == nil, err
}

func (x *index) fan(b byte) uint32 { return binary.BigEndian.Uint32(x.data[indexHeader+4*int(b):]) }

func (x *index) name(i int) []byte { return x.data[indexNames+20*i : indexNames+20*i+20] }

func (x *index) offset(i int) (int64, error) {
	table := indexNames + 24*x.count
	off := binary.BigEndian.Uint32(x.data[table+4*i:])
	if off < wideOffset {
		return int64(off), nil
	}
	w := int(off - wideOffset)
	if w >= x.wide {
		return 0, corrupt("an index points behind its wide offsets")
	}
	return int64(binary.BigEndian.Uint64(x.data[table+4*x.count+8*w:]) &^ (1 << 63)), nil
}

// guard calls f and turns the fault of a mapped file that another process truncated into an error. Without it, the fault
// would end the process.
func (x *index) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = corrupt("an index was cut short while it was in use (fault at %#x)", fault.Addr())
		}
	}()
	return f()
}

// writeIndex writes the index of a pack. recs are in pack order, order sorts them by name.
func writeIndex(w io.Writer, recs []record, order []int32, trailer [20]byte) error {
	sum := sha1.New()
	bw := bufio.NewWriterSize(io.MultiWriter(w, sum), 32<<10)
	put := func(n uint32) { _, _ = bw.Write(binary.BigEndian.AppendUint32(bw.AvailableBuffer(), n)) }

	_, _ = bw.WriteString(indexMagic)
	put(2)
	next := 0
	for b := range 256 {
		for next < len(order) && int(recs[order[next]].id[0]) == b {
			next++
		}
		put(uint32(next))
	}
	for _, i := range order {
		_, _ = bw.Write(recs[i].id[:])
	}
	for _, i := range order {
		put(recs[i].crc)
	}
	wide := uint32(0)
	for _, i := range order {
		if recs[i].off < wideOffset {
			put(uint32(recs[i].off))
			continue
		}
		put(wideOffset | wide)
		wide++
	}
	for _, i := range order {
		if recs[i].off >= wideOffset {
			_, _ = bw.Write(binary.BigEndian.AppendUint64(bw.AvailableBuffer(), uint64(recs[i].off)))
		}
	}
	_, _ = bw.Write(trailer[:])
	if err := bw.Flush(); err != nil { // bufio keeps the first error
		return onDisk(err)
	}
	_, err := w.Write(sum.Sum(nil))
	return onDisk(err)
}
