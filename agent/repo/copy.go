package repo

import (
	"bytes"
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// fetch copies the commit, its trees and its blobs, as far as the store does not have them, into a new pack.
func (l *local) fetch(ctx context.Context, f *fetch) (*incoming, error) { return l.blobs(ctx, f, nil) }

func (l *local) blobs(ctx context.Context, f *fetch, ids []plan.ID) (*incoming, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.opts.Total, errDeadline)
	defer cancel()
	from, err := l.objects(ctx, f.store.limits, func() (*os.File, error) { return anonymous(f.root, packDir) })
	if err != nil {
		return nil, err
	}
	defer from.close()
	if _, err := from.find(f.commit); err != nil {
		if IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			return nil, failure.New(v1alpha1.ReasonRefNotFound, "%s does not have commit %s", l.url, f.commit)
		}
		return nil, l.explain(ctx, err)
	}
	in, err := f.newPack(func(file *os.File, _ *scratch) (packed, error) {
		c := &copier{ctx: ctx, from: from, fetch: f, blobs: ids, seen: map[plan.ID]struct{}{}}
		return c.run(file)
	})
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return in, nil
}

// copier writes objects of one repository into a pack.
type copier struct {
	ctx   context.Context //nolint:containedctx // lives for one call
	from  *objects
	fetch *fetch
	blobs []plan.ID // to copy these alone
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
	c.fetch.stats.Bytes += end
	if _, err := file.WriteAt(packHeader(len(c.recs)), 0); err != nil {
		return packed{}, onDisk(err)
	}
	order, err := byName(c.recs)
	if err != nil {
		return packed{}, err
	}
	trailer, err := seal(file, c.recs, end, true)
	return packed{c.recs, order, trailer}, err
}

// copyAll copies the blobs that are asked for, or else the commit with all that belongs to it.
func (c *copier) copyAll() error {
	for _, id := range c.blobs {
		if err := c.blob(id); err != nil {
			return err
		}
	}
	if len(c.blobs) > 0 {
		return nil
	}
	commit, err := c.copyWhole(c.fetch.commit, 0)
	if err != nil {
		return err
	}
	tree, err := rootTree(c.fetch.commit, c.recs[0].kind, commit)
	if err != nil {
		return err
	}
	return c.tree(tree, 0)
}

// needed reports whether an object must be copied, and counts it as done.
func (c *copier) needed(id plan.ID) bool {
	if _, ok := c.seen[id]; ok {
		return false
	}
	c.seen[id] = struct{}{}
	return c.fetch.base.IsZero() || !c.fetch.store.Has(id)
}

// tree copies a tree and everything below it. A tree that the store has is there with everything below it.
func (c *copier) tree(id plan.ID, depth int) error {
	if !c.needed(id) {
		return nil
	}
	if depth > maxTreeDepth {
		return overLimit("directories are nested deeper than %d", maxTreeDepth)
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
			if !c.fetch.trees && c.needed(e.ID) {
				err = c.blob(e.ID)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyWhole copies an object that is held in memory, and returns its content.
func (c *copier) copyWhole(id plan.ID, want kind) ([]byte, error) {
	var b bytes.Buffer
	err := c.copy(id, want, &b)
	return b.Bytes(), err
}

func (c *copier) blob(id plan.ID) error { return c.copy(id, kindBlob, io.Discard) }

// copy copies an object, also to beside. Unless want is zero, an object of another kind is refused.
func (c *copier) copy(id plan.ID, want kind, beside io.Writer) error {
	limits := &c.fetch.store.limits
	if len(c.recs) >= limits.Objects {
		return overLimit("the commit has more than %d objects", limits.Objects)
	}
	o, err := c.from.find(id)
	if err != nil {
		return err
	}
	if want != 0 && o.kind != want {
		return corrupt("object %s is a %s, where a %s belongs", id, o.kind, want)
	}
	if c.bytes += o.size; c.bytes > limits.InflatedBytes {
		return overLimit("the commit has more than %d bytes", limits.InflatedBytes)
	}
	rec, err := c.out.add(id, o.kind, o.size, func(w io.Writer) error { return o.write(io.MultiWriter(until{c.ctx}, w, beside)) })
	if err != nil {
		return err
	}
	c.recs = append(c.recs, rec)
	if c.out.out.position() > limits.PackBytes {
		return overLimit("the commit has more than %d packed bytes", limits.PackBytes)
	}
	return nil
}

// until fails once its context has ended.
type until struct{ ctx context.Context } //nolint:containedctx // lives for one copy

func (u until) Write(b []byte) (int, error) { return len(b), u.ctx.Err() }
