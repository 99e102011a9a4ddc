package store

import (
	"bytes"
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Copy copies objects of another directory into a new pack: the blobs, or if there are none, Commit with all its trees and
// blobs. Objects that the store has already are left out if Base is set.
func (t *Transfer) Copy(ctx context.Context, from *Objects, blobs []plan.ID) (*Received, error) {
	return t.newPack(func(file *os.File, _ *scratch) (packed, error) {
		c := &copier{ctx: ctx, from: from, to: t, blobs: blobs, seen: map[plan.ID]struct{}{}}
		return c.run(file)
	})
}

// copier writes objects of another directory into a pack.
type copier struct {
	ctx   context.Context //nolint:containedctx // lives for one call
	from  *Objects
	to    *Transfer
	blobs []plan.ID // if not empty, only these are copied
	out   *packWriter
	recs  []record
	seen  map[plan.ID]struct{}
	bytes int64
}

func (c *copier) run(file *os.File) (packed, error) {
	c.out = newPackWriter(file, packHeaderSize)
	if err := c.copyAll(); err != nil {
		return packed{}, err
	}
	end, err := c.out.finish()
	if err != nil {
		return packed{}, err
	}
	c.to.Bytes += end
	if _, err := file.WriteAt(packHeader(len(c.recs)), 0); err != nil {
		return packed{}, onDisk(err)
	}
	order, err := byName(c.recs)
	if err != nil {
		return packed{}, err
	}
	trailer, err := finishPack(file, c.recs, end, true)
	return packed{c.recs, order, trailer}, err
}

// copyAll copies the requested blobs, or the commit with everything that belongs to it.
func (c *copier) copyAll() error {
	for _, id := range c.blobs {
		if err := c.blob(id); err != nil {
			return err
		}
	}
	if len(c.blobs) > 0 {
		return nil
	}
	commit, err := c.copyWhole(c.to.Commit, 0)
	if err != nil {
		return err
	}
	tree, err := rootTree(c.to.Commit, c.recs[0].kind, commit)
	if err != nil {
		return err
	}
	return c.tree(tree, 0)
}

// needed reports whether an object must be copied, and marks it as done.
func (c *copier) needed(id plan.ID) bool {
	if _, ok := c.seen[id]; ok {
		return false
	}
	c.seen[id] = struct{}{}
	return c.to.Base.IsZero() || !c.to.store.Has(id)
}

// tree copies a tree and everything below it. If the store has a tree, it has everything below it too.
func (c *copier) tree(id plan.ID, depth int) error {
	if !c.needed(id) {
		return nil
	}
	if depth > maxTreeDepth {
		return OverLimit("directories are nested deeper than %d", maxTreeDepth)
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	b, err := c.copyWhole(id, kindTree)
	if err != nil {
		return err
	}
	entries, err := parseTree(id, b)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Mode {
		case plan.Directory:
			err = c.tree(e.ID, depth+1)
		case plan.Submodule:
			continue
		default:
			if !c.to.TreesOnly && c.needed(e.ID) {
				err = c.blob(e.ID)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyWhole copies an object and returns its content.
func (c *copier) copyWhole(id plan.ID, want kind) ([]byte, error) {
	var b bytes.Buffer
	err := c.copy(id, want, &b)
	return b.Bytes(), err
}

func (c *copier) blob(id plan.ID) error { return c.copy(id, kindBlob, io.Discard) }

// copy copies an object, and writes its content to beside too. Unless want is zero, an object of another kind is an error.
func (c *copier) copy(id plan.ID, want kind, beside io.Writer) error {
	limits := &c.to.store.limits
	if len(c.recs) >= limits.Objects {
		return OverLimit("the commit has more than %d objects", limits.Objects)
	}
	o, err := c.from.find(id)
	if err != nil {
		return err
	}
	if want != 0 && o.kind != want {
		return corrupt("object %s is a %s, where a %s belongs", id, o.kind, want)
	}
	if c.bytes += o.size; c.bytes > limits.InflatedBytes {
		return OverLimit("the commit has more than %d bytes", limits.InflatedBytes)
	}
	rec, err := c.out.add(id, o.kind, o.size, func(w io.Writer) error { return o.write(io.MultiWriter(until{c.ctx}, w, beside)) })
	if err != nil {
		return err
	}
	c.recs = append(c.recs, rec)
	if c.out.out.position() > limits.PackBytes {
		return OverLimit("the commit has more than %d packed bytes", limits.PackBytes)
	}
	return nil
}

// until is a writer that fails once its context has ended.
type until struct{ ctx context.Context } //nolint:containedctx // lives for one copy

func (u until) Write(b []byte) (int, error) { return len(b), u.ctx.Err() }
