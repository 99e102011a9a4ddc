package repo

import (
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// reader is what one read of an object needs. Readers are kept and used again.
type reader struct {
	inflate *inflater
	scratch *scratch
}

func (s *Store) newReader() *reader {
	return &reader{newInflater(), newScratch(s.scratchFile, s.scratch)}
}

// scratchFile makes a file for objects that are too large for memory.
func (s *Store) scratchFile() (*os.File, error) {
	root, err := s.openRoot()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return anonymous(root, packDir)
}

// read writes the content of an object to w. Unless want is zero, an object of another kind is an error.
func (s *Store) read(w io.Writer, id plan.ID, want kind) (kind, int64, error) {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return 0, 0, err
	}
	r := s.readers.Get().(*reader)
	defer s.putReader(r)
	o, err := p.locate(r.inflate, off, &s.limits)
	if err != nil {
		return 0, 0, err
	}
	if want != 0 && o.kind != want {
		return o.kind, 0, failure.New(v1alpha1.ReasonUnsupportedRepository,
			"object %s of the repository is a %s, where a %s belongs; see what git fsck says of the repository", id, o.kind, want)
	}
	count := &counter{w: w}
	err = o.writeTo(count, r.inflate, r.scratch, &s.limits)
	return o.kind, count.n, err
}

// putReader keeps a reader for the next read, but not the disk space that it used.
func (s *Store) putReader(r *reader) {
	r.scratch.close()
	s.readers.Put(r)
}

// object reads an object into a scratch.
func (s *Store) object(id plan.ID, to *scratch) (kind, *content, error) {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return 0, nil, err
	}
	r := s.readers.Get().(*reader)
	defer s.putReader(r)
	o, err := p.locate(r.inflate, off, &s.limits)
	if err != nil {
		return 0, nil, err
	}
	size, err := o.resultSize(r.inflate)
	if err != nil {
		return 0, nil, err
	}
	if err := s.limits.size(o.kind, size); err != nil {
		return 0, nil, err
	}
	c, err := to.alloc(size)
	if err != nil {
		return 0, nil, err
	}
	if err := o.writeTo(c, r.inflate, r.scratch, &s.limits); err != nil {
		c.free()
		return 0, nil, err
	}
	return o.kind, c, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
