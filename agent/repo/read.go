package repo

import (
	"crypto/sha1"
	"hash"
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
	sum     hash.Hash
}

func (s *Store) newReader() *reader {
	return &reader{newInflater(), newScratch(s.scratchFile, s.scratch), sha1.New()}
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

// read writes the content of an object to w. Unless want is zero, an object of another kind is an error. What was written
// is that object only if there is no error: disks flip bits, and not each such bit breaks a checksum of zlib.
func (s *Store) read(w io.Writer, id plan.ID, want kind) (kind, int64, error) {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return 0, 0, err
	}
	r := s.readers.Get().(*reader)
	defer s.putReader(r)
	o, err := s.locate(p, r, off)
	if err != nil {
		return 0, 0, err
	}
	strange := want != 0 && o.kind != want
	if strange {
		w = io.Discard
	}
	count := &counter{w: w}
	err = r.verified(&o, id, &s.limits, count)
	if err == nil && strange {
		err = failure.New(v1alpha1.ReasonUnsupportedRepository,
			"object %s of the repository is a %s, where a %s belongs; see what git fsck says of the repository", id, o.kind, want)
	}
	return o.kind, count.n, err
}

// locate finds an object in one of the store's packs. What was received was within the limits.
func (s *Store) locate(p *pack, r *reader, off int64) (object, error) {
	o, err := p.locate(r.inflate, off, &s.limits)
	if failure.Is(err, v1alpha1.ReasonLimitExceeded) {
		err = corrupt("an entry of a pack claims another size than it had: %v", err)
	}
	return o, err
}

// verified writes an object to w and insists on its id.
func (r *reader) verified(o *object, id plan.ID, l *Limits, w io.Writer) error {
	size, err := o.resultSize(r.inflate)
	if err != nil {
		return err
	}
	r.sum.Reset()
	_, _ = r.sum.Write(appendHead(nil, o.kind, size))
	if err := o.writeTo(io.MultiWriter(w, r.sum), r.inflate, r.scratch, l); err != nil {
		return err
	}
	if got := plan.ID(r.sum.Sum(nil)); got != id {
		return corrupt("object %s has the content of %s", id, got)
	}
	return nil
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
	o, err := s.locate(p, r, off)
	if err != nil {
		return 0, nil, err
	}
	size, err := o.resultSize(r.inflate)
	if err != nil {
		return 0, nil, err
	}
	if err := s.limits.scratch(o.kind, size); err != nil {
		return 0, nil, err
	}
	c, err := to.alloc(size)
	if err != nil {
		return 0, nil, err
	}
	if err := r.verified(&o, id, &s.limits, c); err != nil {
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
