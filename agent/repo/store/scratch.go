package store

import (
	"io"
	"os"
	"slices"
)

// scratch holds whole objects while deltas are applied: small ones in memory, the others in one temporary file.
type scratch struct {
	create     func() (*os.File, error)
	stop       func() error // may be nil; if it returns an error, alloc fails with it
	file       *os.File
	sizes      scratchSizes
	memoryUsed int64    // bytes
	regions    []region // of file that are in use, sorted by offset
}

type region struct{ off, size int64 }

// scratchSizes bounds the memory and the file of a scratch.
type scratchSizes struct {
	maxFile      int64 // bytes of the file; 0 for any
	maxInMemory  int64 // bytes of an object in memory
	memoryBudget int64 // bytes of all objects in memory
}

func defaultScratch(l Limits) scratchSizes {
	return scratchSizes{maxFile: l.scratchBytes(), maxInMemory: 16 << 20, memoryBudget: 24 << 20}
}

func newScratch(create func() (*os.File, error), sizes scratchSizes) *scratch {
	return &scratch{create: create, sizes: sizes}
}

// scratchObject is one object in a scratch. Write it once, from front to back, and then read it.
type scratchObject struct {
	scratch *scratch
	mem     []byte
	off     int64 // in the file of scratch, if mem is nil
	size    int64
	written int64
}

// alloc reserves space for an object of size bytes.
func (s *scratch) alloc(size int64) (*scratchObject, error) {
	if s.stop != nil {
		if err := s.stop(); err != nil {
			return nil, err
		}
	}
	c := &scratchObject{scratch: s, size: size}
	if size <= s.sizes.maxInMemory && s.memoryUsed+size <= s.sizes.memoryBudget {
		c.mem = make([]byte, 0, size)
		s.memoryUsed += size
		return c, nil
	}
	if s.file == nil {
		f, err := s.create()
		if err != nil {
			return nil, err
		}
		s.file = f
	}
	// Use the first gap that is large enough. Bases are freed before the results, so gaps at the front are common.
	i := 0
	for ; i < len(s.regions) && s.regions[i].off-c.off < size; i++ {
		c.off = s.regions[i].off + s.regions[i].size
	}
	if s.sizes.maxFile > 0 && c.off+size > s.sizes.maxFile {
		return nil, OverLimit("the deltas of a pack need more than %d bytes", s.sizes.maxFile)
	}
	s.regions = slices.Insert(s.regions, i, region{c.off, size})
	return c, nil
}

// close closes the temporary file, which frees its space.
func (s *scratch) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// free releases the space. The object must not be used afterwards.
func (c *scratchObject) free() {
	s := c.scratch
	if c.mem != nil {
		s.memoryUsed -= c.size
		c.mem = nil
		return
	}
	if i := slices.Index(s.regions, region{c.off, c.size}); i >= 0 {
		s.regions = slices.Delete(s.regions, i, i+1)
	}
}

// Write implements io.Writer. It fails after more than size bytes: an entry may claim a wrong size.
func (c *scratchObject) Write(p []byte) (int, error) {
	if c.written+int64(len(p)) > c.size {
		return 0, corrupt("an object is longer than the %d bytes that it claims", c.size)
	}
	if c.mem != nil {
		c.mem = append(c.mem, p...)
	} else if _, err := c.scratch.file.WriteAt(p, c.off+c.written); err != nil {
		return 0, asDiskError(err)
	}
	c.written += int64(len(p))
	return len(p), nil
}

// copyTo writes n bytes, from off on, to w. buf is a buffer for copying.
func (c *scratchObject) copyTo(w io.Writer, off, n int64, buf []byte) error {
	if c.mem != nil {
		_, err := w.Write(c.mem[off : off+n])
		return err
	}
	for n > 0 {
		part := buf[:min(n, int64(len(buf)))]
		if _, err := c.scratch.file.ReadAt(part, c.off+off); err != nil {
			return asDiskError(err)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return nil
}
