package store

import (
	"io"
	"os"
	"slices"
)

// scratch holds the bases of deltas: small ones in memory, large ones and those over the budget in one temporary file without a
// name.
type scratch struct {
	create func() (*os.File, error)
	stop   func() error // if it returns an error, alloc fails with it; may be nil
	file   *os.File
	sizes  scratchSizes
	held   int64    // bytes in memory
	live   []region // of file, sorted
}

type region struct{ off, size int64 }

// scratchSizes bounds the memory of a scratch.
type scratchSizes struct {
	large  int64 // bytes: a larger object is never in memory
	budget int64 // bytes of all objects together
}

func defaultScratch() scratchSizes { return scratchSizes{large: 16 << 20, budget: 24 << 20} }

func newScratch(create func() (*os.File, error), sizes scratchSizes) *scratch {
	return &scratch{create: create, sizes: sizes}
}

// content is one object in a scratch. It is written once, from front to back, and then read.
type content struct {
	home    *scratch
	mem     []byte
	off     int64 // in the file of home, if mem is nil
	size    int64
	written int64
}

// alloc reserves space for an object of size bytes.
func (s *scratch) alloc(size int64) (*content, error) {
	if s.stop != nil {
		if err := s.stop(); err != nil {
			return nil, err
		}
	}
	c := &content{home: s, size: size}
	if size <= s.sizes.large && s.held+size <= s.sizes.budget {
		c.mem = make([]byte, 0, size)
		s.held += size
		return c, nil
	}
	if s.file == nil {
		f, err := s.create()
		if err != nil {
			return nil, err
		}
		s.file = f
	}
	// The first gap that is large enough: parents are dropped before their children, so gaps at the front are common.
	at := 0
	for ; at < len(s.live) && s.live[at].off-c.off < size; at++ {
		c.off = s.live[at].off + s.live[at].size
	}
	s.live = slices.Insert(s.live, at, region{c.off, size})
	return c, nil
}

// close closes the temporary file, which frees its space.
func (s *scratch) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// free releases the space. The content must not be used afterwards.
func (c *content) free() {
	s := c.home
	if c.mem != nil {
		s.held -= c.size
		c.mem = nil
		return
	}
	for i, r := range s.live {
		if r == (region{c.off, c.size}) {
			s.live = slices.Delete(s.live, i, i+1)
			return
		}
	}
}

// Write implements io.Writer. More than size bytes are an error: an entry may claim a wrong length.
func (c *content) Write(p []byte) (int, error) {
	if c.written+int64(len(p)) > c.size {
		return 0, corrupt("an object is longer than the %d bytes that it claims", c.size)
	}
	if c.mem != nil {
		c.mem = append(c.mem, p...)
	} else if _, err := c.home.file.WriteAt(p, c.off+c.written); err != nil {
		return 0, onDisk(err)
	}
	c.written += int64(len(p))
	return len(p), nil
}

// copyTo writes n bytes from off on to w.
func (c *content) copyTo(w io.Writer, off, n int64, buf []byte) error {
	if c.mem != nil {
		_, err := w.Write(c.mem[off : off+n])
		return err
	}
	for n > 0 {
		part := buf[:min(n, int64(len(buf)))]
		if _, err := c.home.file.ReadAt(part, c.off+off); err != nil {
			return onDisk(err)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return nil
}
