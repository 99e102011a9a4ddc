package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash"
	"io"
	"slices"
	"sort"
	"strconv"

	"github.com/pjbgf/sha1cd"

	"stoker.io/stoker/agent/plan"
)

// kind is the type of an entry of a pack. The numbers are those of the pack format.
type kind uint8

const (
	kindCommit kind = 1
	kindTree   kind = 2
	kindBlob   kind = 3
	kindTag    kind = 4
	kindOffset kind = 6 // OFS_DELTA: the base is an earlier entry of the pack
	kindRef    kind = 7 // REF_DELTA: the entry has the id of the base
)

func (k kind) String() string {
	switch k {
	case kindCommit:
		return "commit"
	case kindTree:
		return "tree"
	case kindBlob:
		return "blob"
	case kindTag:
		return "tag"
	}
	return "delta"
}

func (k kind) delta() bool { return k == kindOffset || k == kindRef }

func (k kind) valid() bool { return (k >= kindCommit && k <= kindTag) || k.delta() }

const (
	packHeaderSize  = 12
	packTrailerSize = 20 // the SHA-1 of all bytes before it
	packMagic       = "PACK"
	packVersion     = 2
)

// entry is the header of an object in a pack.
type entry struct {
	kind     kind
	size     int64   // inflated bytes of the object or of the delta
	distance int64   // of a kindOffset: how many bytes before the entry its base starts
	baseID   plan.ID // of a kindRef
}

// readEntry reads the header of an entry and leaves br at the first byte of the zlib stream.
func readEntry(br *bufio.Reader) (entry, error) {
	var e entry
	b, err := br.ReadByte()
	if err != nil {
		return e, err
	}
	e.kind, e.size = kind(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if shift > 55 {
			return e, corrupt("the size of an entry does not fit 62 bits")
		}
		if b, err = br.ReadByte(); err != nil {
			return e, err
		}
		e.size |= int64(b&0x7f) << shift
	}
	switch e.kind {
	case kindOffset:
		e.distance, err = readDistance(br)
	case kindRef:
		_, err = io.ReadFull(br, e.baseID[:])
	default:
		if !e.kind.valid() {
			err = corrupt("an entry has the unknown type %d", e.kind)
		}
	}
	return e, err
}

// readDistance reads the distance of a kindOffset entry: big endian, seven bits a byte, plus one for each byte after the first.
func readDistance(br *bufio.Reader) (int64, error) {
	b, err := br.ReadByte()
	n := int64(b & 0x7f)
	for i := 0; err == nil && b&0x80 != 0; i++ {
		if i > 7 {
			return 0, corrupt("the distance to a base does not fit 62 bits")
		}
		b, err = br.ReadByte()
		n = (n+1)<<7 | int64(b&0x7f)
	}
	return n, err
}

// EntryHeader encodes the header of an entry that is not a delta: the low four bits of the size beside the kind, then seven bits
// a byte.
func EntryHeader[K ~int8 | ~uint8](k K, size int64) []byte {
	var buf []byte
	b := byte(k)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		buf = append(buf, b|0x80)
		b = byte(size & 0x7f)
	}
	return append(buf, b)
}

// PackHeader returns the header of a pack with this number of objects.
func PackHeader(objects int) []byte {
	buf := []byte(packMagic)
	buf = binary.BigEndian.AppendUint32(buf, packVersion)
	return binary.BigEndian.AppendUint32(buf, uint32(objects))
}

// record describes an object of a pack that is being written. The records, of 48 bytes each, are most of the memory that grows with
// the number of objects.
type record struct {
	id        plan.ID
	crc       uint32 // of the packed bytes
	off       int64
	base      int64 // of a kindOffset: offset of the base; of a kindRef: index in receiver.baseIDs
	kind      kind  // of the object; zero while a delta is not resolved
	entryKind kind  // of the entry
}

// objectHasher computes object ids, and detects SHA-1 collision attacks.
type objectHasher struct {
	sum sha1cd.CollisionResistantHash
	buf []byte
}

func newObjectHasher() *objectHasher {
	return &objectHasher{sum: sha1cd.New().(sha1cd.CollisionResistantHash)}
}

// start begins a new object. The caller writes its content to the returned hash.
func (h *objectHasher) start(k kind, size int64) hash.Hash {
	h.sum.Reset()
	h.buf = appendObjectHeader(h.buf[:0], k, size)
	_, _ = h.sum.Write(h.buf)
	return h.sum
}

// appendObjectHeader appends the header that is hashed before the content of an object.
func appendObjectHeader(b []byte, k kind, size int64) []byte {
	b = append(append(b, k.String()...), ' ')
	return append(strconv.AppendInt(b, size, 10), 0)
}

// id returns the id of the object, or an error if the content is a collision attack.
func (h *objectHasher) id() (plan.ID, error) {
	sum, collision := h.sum.CollisionResistantSum(h.buf[:0])
	if collision {
		return plan.ID{}, corrupt("an object is part of a SHA-1 collision attack")
	}
	return plan.ID(sum[:20]), nil
}

// sortByID returns the positions in recs, sorted by object id. An id that occurs twice is an error.
func sortByID(recs []record) ([]int32, error) {
	order := make([]int32, len(recs))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return bytes.Compare(recs[a].id[:], recs[b].id[:]) })
	for i := 1; i < len(order); i++ {
		if recs[order[i]].id == recs[order[i-1]].id {
			return nil, corrupt("object %s is in the pack twice", recs[order[i]].id)
		}
	}
	return order, nil
}

// findByID returns the position in recs of an id. order is the result of sortByID.
func findByID(recs []record, order []int32, id plan.ID) (int32, bool) {
	i, ok := slices.BinarySearchFunc(order, id, func(i int32, id plan.ID) int { return bytes.Compare(recs[i].id[:], id[:]) })
	if !ok {
		return 0, false
	}
	return order[i], true
}

// findByOffset returns the position in recs of the entry that starts at off.
func findByOffset(recs []record, off int64) (int32, bool) {
	i := sort.Search(len(recs), func(i int) bool { return recs[i].off >= off })
	return int32(i), i < len(recs) && recs[i].off == off
}
