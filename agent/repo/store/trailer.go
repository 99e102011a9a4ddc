package store

import (
	"crypto/sha1"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"io"
	"os"
)

// finishPack reads a pack from front to back and sets the checksum of each record. If entries were appended, it writes a new
// header and trailer too. recs are in pack order; end is the end of the entries. It returns the trailer.
func finishPack(f *os.File, recs []record, end int64, appended bool) ([packTrailerSize]byte, error) {
	var trailer [packTrailerSize]byte
	var sum hash.Hash
	if appended {
		sum = sha1.New()
		_, _ = sum.Write(packHeader(len(recs)))
	}
	buf := make([]byte, 128<<10)
	for i := range recs {
		next := end
		if i+1 < len(recs) {
			next = recs[i+1].off
		}
		crc, err := checksum(&sectionReader{f, recs[i].off, next}, sum, buf)
		if err != nil {
			return trailer, err
		}
		recs[i].crc = crc
	}
	if !appended {
		return trailerOf(f, end+packTrailerSize)
	}
	copy(trailer[:], sum.Sum(nil))
	if _, err := f.WriteAt(binary.BigEndian.AppendUint32(nil, uint32(len(recs))), packHeaderSize-4); err != nil {
		return trailer, onDisk(err)
	}
	if _, err := f.WriteAt(trailer[:], end); err != nil {
		return trailer, onDisk(err)
	}
	return trailer, onDisk(f.Truncate(end + packTrailerSize))
}

// checksum reads r to its end and returns its CRC-32. Unless sum is nil, it writes the bytes there too.
func checksum(r *sectionReader, sum hash.Hash, buf []byte) (uint32, error) {
	crc := uint32(0)
	for r.off < r.end {
		n, err := r.Read(buf)
		crc = crc32.Update(crc, crc32.IEEETable, buf[:n])
		if sum != nil {
			_, _ = sum.Write(buf[:n])
		}
		if err != nil {
			return 0, onDisk(err)
		}
	}
	return crc, nil
}

// trailerOf reads the checksum at the end of a pack of size bytes.
func trailerOf(f io.ReaderAt, size int64) ([packTrailerSize]byte, error) {
	var t [packTrailerSize]byte
	_, err := f.ReadAt(t[:], size-packTrailerSize)
	return t, onDisk(err)
}

// trailerHasher hashes everything that is written except the last 20 bytes, which are the checksum of a pack.
type trailerHasher struct {
	sum  hash.Hash
	tail []byte
}

func (h *trailerHasher) Write(p []byte) (int, error) {
	switch over := len(h.tail) + len(p) - packTrailerSize; {
	case len(p) >= packTrailerSize:
		_, _ = h.sum.Write(h.tail)
		_, _ = h.sum.Write(p[:len(p)-packTrailerSize])
		h.tail = append(h.tail[:0], p[len(p)-packTrailerSize:]...)
	case over > 0:
		_, _ = h.sum.Write(h.tail[:over])
		h.tail = append(append(h.tail[:0], h.tail[over:]...), p...)
	default:
		h.tail = append(h.tail, p...)
	}
	return len(p), nil
}
