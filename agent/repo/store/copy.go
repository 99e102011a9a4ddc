package store

import (
	"bytes"
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Copy copies objects into a new pack: blobs, or, if blobs is empty, Commit with all its trees and, unless TreesOnly is set, their blobs.
// With Commit and a Base, Copy leaves out the trees and blobs that the store has already.
func (t *Transfer) Copy(ctx context.Context, from *Objects, blobs []plan.ID) (*Received, error) {
	return t.newPack(func(file *os.File, _ *scratch) (packContents, error) {
		c := &copier{ctx: ctx, from: from, to: t, blobs: blobs, seen: map[plan.ID]struct{}{}}
		return c.run(file)
	})
}

// copier writes objects of another directory into a pack.
type copier struct {
	ctx      context.Context //nolint:containedctx // lives for one call
	from     *Objects
	to       *Transfer
	blobs    []plan.ID // if not empty, only these are copied
	out      *packWriter
	recs     []record
	seen     map[plan.ID]struct{}
	inflated int64
}

func (c *copier) run(file *os.File) (packContents, error) {
	c.out = newPackWriter(file, packHeaderSize)
	if err := c.copyAll(); err != nil {
		return packContents{}, err
	}
	end, err := c.out.finish()
	if err != nil {
		return packContents{}, err
	}
	c.to.Bytes += end
	order, err := sortByID(c.recs)
	if err != nil {
		return packContents{}, err
	}
	trailer, err := finishPack(file, c.recs, end, true)
	return packContents{c.recs, order, trailer}, err
}

// copyAll copies the requested blobs, or the commit with everything that belongs to it.
func (c *copier) copyAll() error {
	for _, id := range c.blobs {
		if err := c.copyBlob(id); err != nil {
			return err
		}
	}
	if len(c.blobs) > 0 {
		return nil
	}
	commit, err := c.copyAndRead(c.to.Commit, 0)
	if err != nil {
		return err
	}
	tree, err := rootTreeID(c.to.Commit, c.recs[0].kind, commit)
	if err != nil {
		return err
	}
	return c.copyTree(tree, 0)
}

// markNeeded reports whether an object must still be copied, and marks it as seen.
func (c *copier) markNeeded(id plan.ID) bool {
	if _, ok := c.seen[id]; ok {
		return false
	}
	c.seen[id] = struct{}{}
	return c.to.Base.IsZero() || !c.to.store.Has(id)
}

// copyTree copies a tree and everything below it. A store that has a tree has everything below it, too.
func (c *copier) copyTree(id plan.ID, depth int) error {
	if !c.markNeeded(id) {
		return nil
	}
	if depth > maxTreeDepth {
		return OverLimit("directories are nested deeper than %d", maxTreeDepth)
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	b, err := c.copyAndRead(id, kindTree)
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
			err = c.copyTree(e.ID, depth+1)
		case plan.Submodule:
			continue
		default:
			if !c.to.TreesOnly && c.markNeeded(e.ID) {
				err = c.copyBlob(e.ID)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyAndRead copies an object and returns its content.
func (c *copier) copyAndRead(id plan.ID, want kind) ([]byte, error) {
	var b bytes.Buffer
	err := c.copyObject(id, want, &b)
	return b.Bytes(), err
}

func (c *copier) copyBlob(id plan.ID) error { return c.copyObject(id, kindBlob, io.Discard) }

// copyObject copies an object, and also writes its content to w. Unless want is zero, an object of another kind is an error.
func (c *copier) copyObject(id plan.ID, want kind, w io.Writer) error {
	limits := &c.to.store.limits
	if len(c.recs) >= limits.Objects {
		return OverLimit("the commit has more than %d objects", limits.Objects)
	}
	o, err := c.from.find(id)
	if err != nil {
		return err
	}
	if want != 0 && o.kind != want {
		return corrupt("object %s is a %s, not a %s", id, o.kind, want)
	}
	if c.inflated += o.size; c.inflated > limits.InflatedBytes {
		return OverLimit("the commit has more than %d bytes", limits.InflatedBytes)
	}
	rec, err := c.out.add(id, o.kind, o.size, func(pack io.Writer) error {
		return o.write(io.MultiWriter(cancelCheck{c.ctx}, pack, w))
	})
	if err != nil {
		return err
	}
	c.recs = append(c.recs, rec)
	if c.out.position() > limits.PackBytes {
		return OverLimit("the commit has more than %d packed bytes", limits.PackBytes)
	}
	return nil
}

// cancelCheck is a writer that writes nothing, and fails when its context has ended.
type cancelCheck struct{ ctx context.Context } //nolint:containedctx // lives for one copy

func (u cancelCheck) Write(b []byte) (int, error) { return len(b), u.ctx.Err() }
