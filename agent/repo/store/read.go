package store

import (
	"bytes"
	"crypto/sha1"
	"errors"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/failure"
)

// Has reports whether an object is in the store.
func (s *Store) Has(id plan.ID) bool {
	packs := s.acquire()
	defer releaseAll(packs)
	_, _, err := find(packs, id)
	s.noteFileDamage(err) // a missing object is not damage here
	return err == nil
}

// SortKey orders objects by their position on disk: a caller that reads objects in the order of their keys reads each pack from
// front to back. An object that is not in the store has the key -1.
func (s *Store) SortKey(id plan.ID) int64 {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return -1
	}
	return p.seq<<40 | off // packs are far smaller than 1<<40 bytes, see Limits.PackBytes
}

// RootTree returns the root tree of a commit. If the store does not have the commit, IsNotFound(err) is true, and the store does
// not count as damaged.
func (s *Store) RootTree(commit plan.ID) (plan.ID, error) {
	var b bytes.Buffer
	k, _, err := s.read(&b, commit, 0)
	if err != nil {
		if !IsNotFound(err) {
			err = s.NoteDamage(err)
		}
		return plan.ID{}, err
	}
	return rootTreeID(commit, k, b.Bytes())
}

// Origin returns the author of a commit as "name <mail>", and the first line of its message. The client that creates the commit chooses
// both. An error does not mark the store as damaged: the caller may ask for a commit that was never fetched.
func (s *Store) Origin(commit plan.ID) (author, subject string, _ error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, commit, kindCommit); err != nil {
		return "", "", err
	}
	return commitAuthor(b.Bytes()), commitSubject(b.Bytes()), nil
}

// Subject returns the first line of a commit's message and the name of its author as one printable line of at most 200 bytes, such as
// "Fill tank 4 (Li Wei)"; "" if the store is not open yet or does not have the commit, or if its message has no text.
func (s *Store) Subject(commit plan.ID) string {
	if !s.opened.Load() {
		return ""
	}
	author, subject, err := s.Origin(commit)
	if err != nil {
		return ""
	}
	return subjectLine(author, subject)
}

func subjectLine(author, subject string) string {
	if subject = failure.Cut(annotation.Line(subject), 140); subject == "" {
		return ""
	}
	name, _, _ := strings.Cut(author, "<")
	if name = failure.Cut(annotation.Line(name), 56); name != "" {
		subject += " (" + name + ")"
	}
	return subject
}

// Committed returns the time at which a commit was made, as its committer says; zero if the commit has none.
func (s *Store) Committed(commit plan.ID) (time.Time, error) {
	text, err := s.CommitText(commit)
	if err != nil {
		return time.Time{}, err
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 2 && string(fields[0]) == "committer" {
			seconds, err := strconv.ParseInt(string(fields[len(fields)-2]), 10, 64)
			if err == nil {
				return time.Unix(seconds, 0), nil
			}
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	return time.Time{}, nil
}

// CommitText returns the bytes of a commit.
func (s *Store) CommitText(commit plan.ID) ([]byte, error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, commit, kindCommit); err != nil {
		return nil, s.NoteDamage(err)
	}
	return b.Bytes(), nil
}

// Complete reports whether the store has a commit and its root tree. Then it also has everything below the tree, except blobs if
// the store is Partial, because only complete packs are published.
func (s *Store) Complete(commit plan.ID) bool {
	tree, err := s.RootTree(commit)
	return err == nil && s.Has(tree)
}

// Tree implements plan.Objects.
func (s *Store) Tree(id plan.ID) ([]plan.Entry, error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, id, kindTree); err != nil {
		return nil, s.NoteDamage(err)
	}
	return parseTree(id, b.Bytes())
}

// TreeBytes returns the bytes of a well-formed tree. They have the exact modes, such as 100664, which Tree does not
// return.
func (s *Store) TreeBytes(id plan.ID) ([]byte, error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, id, kindTree); err != nil {
		return nil, s.NoteDamage(err)
	}
	if _, err := parseTree(id, b.Bytes()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// ReadBlob writes a blob to w and returns the number of bytes. If it fails, what it wrote may be wrong. A caller that knows that
// the store must have the blob passes the error to NoteDamage.
func (s *Store) ReadBlob(w io.Writer, id plan.ID) (int64, error) {
	_, n, err := s.read(w, id, kindBlob)
	return n, err
}

// WalkBlobs calls visit for each blob in the trees of a commit, at least once and possibly several times: it reads equal trees
// once, but files with the same content have the same blob. The limit on objects counts these calls, so it may count fewer than
// the commit has files.
func (s *Store) WalkBlobs(commit plan.ID, visit func(plan.ID)) error {
	root, err := s.RootTree(commit)
	if err != nil {
		return err
	}
	files := 0
	seen := map[plan.ID]struct{}{}
	var walk func(id plan.ID, depth int) error
	walk = func(id plan.ID, depth int) error {
		if _, ok := seen[id]; ok {
			return nil
		}
		seen[id] = struct{}{}
		if depth > maxTreeDepth {
			return OverLimit("directories are nested deeper than %d", maxTreeDepth)
		}
		if files > s.limits.Objects {
			return OverLimit("the commit has more than %d files", s.limits.Objects)
		}
		entries, err := s.Tree(id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch e.Mode {
			case plan.Directory:
				if err := walk(e.ID, depth+1); err != nil {
					return err
				}
			case plan.Submodule:
			default:
				files++
				visit(e.ID)
			}
		}
		return nil
	}
	return walk(root, 0)
}

// IsNotFound reports whether an error says that an object is not in the store.
func IsNotFound(err error) bool {
	_, ok := errors.AsType[*notFoundError](err)
	return ok
}

// NotFound returns an error that names an object. IsNotFound is true for it.
func NotFound(id plan.ID) error { return &notFoundError{id} }

type notFoundError struct{ id plan.ID }

func (e *notFoundError) Error() string { return "object " + e.id.String() + " is not in the store" }

// find looks for an object, in the newest pack first.
func find(packs []*pack, id plan.ID) (*pack, int64, error) {
	for i := len(packs) - 1; i >= 0; i-- {
		off, ok, err := packs[i].find(id)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			return packs[i], off, nil
		}
	}
	return nil, 0, NotFound(id)
}

// reader has the buffers for one read of an object. Store.readers keeps readers for reuse.
type reader struct {
	inflate *inflater
	scratch *scratch
	sum     hash.Hash
}

// newReader returns a reader for a store in dir. The sizes are those of its scratch.
func newReader(dir string, sizes scratchSizes) *reader {
	return &reader{newInflater(), newScratch(func() (*os.File, error) { return createScratch(dir) }, sizes), sha1.New()}
}

// createScratch creates the file of a scratch.
func createScratch(dir string) (*os.File, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return createUnnamed(root, packDir)
}

// withObject finds an object and calls do with it, and with a reader to read it.
func (s *Store) withObject(id plan.ID, do func(r *reader, o *packedObject) error) error {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return err
	}
	r := s.readers.Get().(*reader)
	defer func() {
		r.scratch.close() // frees the disk space that the reader used
		s.readers.Put(r)
	}()
	o, err := r.locate(p, off, &s.limits)
	if err != nil {
		return err
	}
	return do(r, &o)
}

// read writes the content of an object to w. Unless want is zero, an object of another kind is an error, and read writes nothing.
// If read fails, what it wrote may be wrong: the id is verified last.
func (s *Store) read(w io.Writer, id plan.ID, want kind) (k kind, n int64, err error) {
	count := &countingWriter{w: w}
	err = s.withObject(id, func(r *reader, o *packedObject) error {
		k = o.kind
		wrongKind := want != 0 && k != want
		if wrongKind {
			count.w = io.Discard
		}
		err := r.writeVerified(o, id, &s.limits, count)
		if err == nil && wrongKind {
			err = failure.New(v1alpha1.ReasonUnsupportedRepository,
				"object %s of the repository is a %s, not a %s; run git fsck on the repository", id, k, want)
		}
		return err
	})
	return k, count.n, err
}

// readIntoScratch reads an object into a scratch. The caller must free the returned object.
func (s *Store) readIntoScratch(id plan.ID, to *scratch) (k kind, c *scratchObject, err error) {
	err = s.withObject(id, func(r *reader, o *packedObject) error {
		size, err := o.resultSize(r.inflate)
		if err != nil {
			return err
		}
		if err := s.limits.checkDeltaSize(o.kind, size); err != nil {
			return err
		}
		object, err := to.alloc(size)
		if err != nil {
			return err
		}
		if err := r.writeVerified(o, id, &s.limits, object); err != nil {
			object.free()
			return err
		}
		k, c = o.kind, object
		return nil
	})
	return k, c, err
}

// locate is pack.locate for a pack of the store. A size over the limits means damage, because the received pack was within them.
func (r *reader) locate(p *pack, off int64, l *Limits) (packedObject, error) {
	o, err := p.locate(r.inflate, off, l)
	if failure.Is(err, v1alpha1.ReasonLimitExceeded) {
		err = corrupt("an entry of a pack claims another size than it had: %v", err)
	}
	return o, err
}

// writeVerified writes an object to w and checks its id.
func (r *reader) writeVerified(o *packedObject, id plan.ID, l *Limits, w io.Writer) error {
	size, err := o.resultSize(r.inflate)
	if err != nil {
		return err
	}
	r.sum.Reset()
	_, _ = r.sum.Write(appendObjectHeader(nil, o.kind, size))
	if err := o.writeTo(io.MultiWriter(w, r.sum), r.inflate, r.scratch, l); err != nil {
		return err
	}
	if got := plan.ID(r.sum.Sum(nil)); got != id {
		return corrupt("object %s has the content of %s", id, got)
	}
	return nil
}

// countingWriter counts the bytes that are written to w.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
