package store

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"sort"

	"stoker.io/stoker/agent/plan"
)

// The index of a pack in git's format, version 2: fan-out, object ids, CRC-32s, 4-byte offsets, 8-byte offsets, the checksum of
// the pack, the checksum of the index.
const (
	indexMagic    = "\xfftOc"
	indexHeader   = 8
	fanOutSize    = 256 * 4
	indexIDs      = indexHeader + fanOutSize
	wideOffset    = 1 << 31 // from here on, an offset is in the table of 8-byte offsets
	idSize        = 20
	crcSize       = 4
	offsetSize    = 4
	indexPerEntry = idSize + crcSize + offsetSize
)

// index finds the objects of one pack. The file is memory-mapped, so that it counts as page cache and not as memory of the
// process.
type index struct {
	data  []byte
	count int
	wide  int // number of 8-byte offsets
	unmap func() error
}

// errIndexVersion means that an index is not of version 2, which git has written since 2008.
var errIndexVersion = fmt.Errorf("%w: the index of a pack is not of version 2", ErrCorrupt)

// openIndex maps an index. It checks the structure and the checksum, and that the index belongs to the pack with this trailer.
func openIndex(f *os.File, trailer [20]byte) (*index, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, asDiskError(err)
	}
	if st.Size() < indexIDs+2*packTrailerSize {
		return nil, corrupt("an index has only %d bytes", st.Size())
	}
	data, unmap, err := mapFile(f, st.Size())
	if err != nil {
		return nil, asDiskError(err)
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
	rest := int64(len(d)) - indexIDs - int64(last)*indexPerEntry - 2*packTrailerSize
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
	err = x.guard(func() (err error) {
		lo, hi := 0, int(x.fanOut(id[0]))
		if id[0] > 0 {
			lo = int(x.fanOut(id[0] - 1))
		}
		if lo > hi || hi > x.count {
			return corrupt("the fan-out of an index goes backwards")
		}
		i := lo + sort.Search(hi-lo, func(i int) bool { return bytes.Compare(x.id(lo+i), id[:]) >= 0 })
		if i == hi || !bytes.Equal(x.id(i), id[:]) {
			return nil
		}
		off, err = x.offset(i)
		found = err == nil
		return err
	})
	return off, found, err
}

func (x *index) fanOut(b byte) uint32 { return binary.BigEndian.Uint32(x.data[indexHeader+4*int(b):]) }

func (x *index) id(i int) []byte { return x.data[indexIDs+idSize*i:][:idSize] }

func (x *index) offset(i int) (int64, error) {
	table := indexIDs + (idSize+crcSize)*x.count
	off := binary.BigEndian.Uint32(x.data[table+offsetSize*i:])
	if off < wideOffset {
		return int64(off), nil
	}
	w := int(off - wideOffset)
	if w >= x.wide {
		return 0, corrupt("an index points behind its wide offsets")
	}
	n := binary.BigEndian.Uint64(x.data[table+offsetSize*x.count+8*w:])
	return int64(min(n, math.MaxInt64)), nil // the pack refuses an offset beyond its end
}

// guard calls f, which reads the mapped file, and turns a memory fault into an error. A fault occurs if another process truncates
// the file, and would end this process.
func (x *index) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // sets it now, and restores it at the end
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

// writeIndex writes the index of a pack. recs are in pack order; order has their positions sorted by object id.
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
		return asDiskError(err)
	}
	_, err := w.Write(sum.Sum(nil))
	return asDiskError(err)
}
