package store

import (
	"bufio"
	"encoding/binary"
	"io"

	"stoker.io/stoker/agent/plan"
)

// kind is the type of an entry of a pack.
type kind uint8

const (
	kindCommit kind = 1
	kindTree   kind = 2
	kindBlob   kind = 3
	kindTag    kind = 4
	kindOffset kind = 6 // a delta whose base is an earlier entry of the pack (git: OFS_DELTA)
	kindRef    kind = 7 // a delta whose base is named by its id (git: REF_DELTA)
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
	packTrailerSize = 20
	packMagic       = "PACK"
	packVersion     = 2
)

// entry is the head of an object in a pack.
type entry struct {
	kind   kind
	size   int64   // inflated bytes: of the object, or of the delta
	back   int64   // kindOffset: distance to the base, in bytes
	baseID plan.ID // kindRef
}

// readEntry reads the head of an entry and leaves br at the first byte of the zlib stream.
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
		e.back, err = readBack(br)
	case kindRef:
		_, err = io.ReadFull(br, e.baseID[:])
	default:
		if !e.kind.valid() {
			err = corrupt("an entry has the unknown type %d", e.kind)
		}
	}
	return e, err
}

// readBack reads the distance of a kindOffset entry: big endian, with an implied one for each further byte.
func readBack(br *bufio.Reader) (int64, error) {
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

// entryHead encodes the head of an entry that is not a delta.
func entryHead(k kind, size int64) []byte {
	var buf []byte
	b := byte(k)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		buf = append(buf, b|0x80)
		b = byte(size & 0x7f)
	}
	return append(buf, b)
}

// packHeader returns the header of a pack of so many objects.
func packHeader(objects int) []byte {
	buf := []byte(packMagic)
	buf = binary.BigEndian.AppendUint32(buf, packVersion)
	return binary.BigEndian.AppendUint32(buf, uint32(objects))
}
