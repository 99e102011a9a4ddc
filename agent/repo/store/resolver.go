package store

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"stoker.io/stoker/agent/plan"
)

// resolver computes the ids of the deltas of a pack. It goes depth first and frees a base before it follows the last child, so
// that a plain chain keeps two objects at a time.
type resolver struct {
	*receiver
	first, next []int32 // children of a record: head and links, 1-based, 0 ends
	byRef       map[plan.ID]int32
	stack       []frame
}

// MissingBaseError says that a thin pack builds on an object that the store does not have.
type MissingBaseError struct{ err error }

func (e *MissingBaseError) Error() string {
	return "the pack builds on something that we do not have: " + e.err.Error()
}
func (e *MissingBaseError) Unwrap() error { return e.err }

// frame is an object with children (deltas that build on it) that are not resolved yet.
type frame struct {
	data  *content
	child int32
	depth int
	kind  kind
}

func (r *receiver) resolve(ctx context.Context) error {
	deltas := 0
	for i := range r.recs {
		if r.recs[i].as.delta() {
			deltas++
		}
	}
	if deltas == 0 {
		return nil
	}
	v := &resolver{receiver: r, byRef: map[plan.ID]int32{}}
	defer v.drop()
	if err := v.link(); err != nil {
		return err
	}
	if err := v.fromPack(ctx); err != nil {
		return err
	}
	if err := v.fromOutside(ctx); err != nil {
		return err
	}
	for i := range r.recs {
		if r.recs[i].kind == 0 {
			return corrupt("a delta has no base")
		}
	}
	return nil
}

// drop frees what an error left on the stack.
func (v *resolver) drop() {
	for _, f := range v.stack {
		f.data.free()
	}
	v.stack = nil
}

// link builds the lists of children.
func (v *resolver) link() error {
	v.first = make([]int32, len(v.recs))
	v.next = make([]int32, len(v.recs))
	for i := range v.recs {
		switch rec := &v.recs[i]; rec.as {
		case kindOffset:
			j, ok := findOffset(v.recs, rec.base)
			if !ok {
				return corrupt("the base of a delta is not the start of an entry")
			}
			v.next[i], v.first[j] = v.first[j], int32(i+1)
		case kindRef:
			id := v.bases[rec.base]
			v.next[i], v.byRef[id] = v.byRef[id], int32(i+1)
		}
	}
	return nil
}

// children takes the list of children of a record whose id is known: those that name it by offset or by id.
func (v *resolver) children(i int32) int32 {
	list := v.first[i]
	named, ok := v.byRef[v.recs[i].id]
	if !ok {
		return list
	}
	delete(v.byRef, v.recs[i].id)
	last := named
	for v.next[last-1] != 0 {
		last = v.next[last-1]
	}
	v.next[last-1] = list
	return named
}

// fromPack follows the deltas that start at whole objects of the pack.
func (v *resolver) fromPack(ctx context.Context) error {
	for i := range v.recs {
		rec := &v.recs[i]
		if rec.as.delta() {
			continue
		}
		list := v.children(int32(i))
		if list == 0 {
			continue
		}
		e, err := v.inflate.at(v.file, rec.off, v.end)
		if err != nil {
			return err
		}
		if err := v.limits.scratch(rec.kind, e.size); err != nil {
			return err
		}
		c, err := v.scratch.alloc(e.size)
		if err != nil {
			return err
		}
		v.stack = append(v.stack, frame{data: c, child: list, kind: rec.kind})
		if err := v.inflate.copyContent(c, v.inflate.br, e.size); err != nil {
			return err
		}
		if err := v.walk(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fromOutside follows the deltas of a thin pack, whose bases we have. What we do not have may come out of the deltas
// that are still to be made, so it is missing only when nothing else is left.
func (v *resolver) fromOutside(ctx context.Context) error {
	for len(v.byRef) > 0 {
		ids := slices.Collect(maps.Keys(v.byRef))
		var missing error
		progress := false
		for _, id := range ids {
			list, ok := v.byRef[id]
			if !ok {
				continue // another walk has resolved it
			}
			k, c, err := v.external(id)
			if errors.Is(err, errNotFound) {
				missing = err
				continue
			}
			if err != nil {
				return err
			}
			delete(v.byRef, id)
			progress = true
			v.thin = append(v.thin, id)
			v.stack = append(v.stack, frame{data: c, child: list, kind: k})
			if err := v.walk(ctx); err != nil {
				return err
			}
		}
		if !progress {
			return &MissingBaseError{missing}
		}
	}
	return nil
}

// walk resolves all descendants of the one object on the stack.
func (v *resolver) walk(ctx context.Context) error {
	for n := 0; len(v.stack) > 0; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		top := &v.stack[len(v.stack)-1]
		i := top.child - 1
		top.child = v.next[i]
		parent, last := *top, top.child == 0
		if last {
			v.stack = v.stack[:len(v.stack)-1]
		}
		err := v.make(i, parent)
		if last {
			parent.data.free()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// make applies the delta of record i to its base, computes the id of the result, and pushes it if it has children.
func (v *resolver) make(i int32, base frame) error {
	rec := &v.recs[i]
	if base.depth == v.limits.DeltaDepth {
		return OverLimit("a chain of deltas is longer than %d", v.limits.DeltaDepth)
	}
	e, err := v.inflate.at(v.file, rec.off, v.end)
	if err != nil {
		return err
	}
	d, err := v.inflate.openDelta(v.inflate.br, e)
	if err != nil {
		return err
	}
	if err := v.limits.scratch(base.kind, d.size); err != nil {
		return err
	}
	if err := v.spend(d.size); err != nil {
		return err
	}
	rec.kind = base.kind
	w := io.Writer(v.name.start(base.kind, d.size))
	// Children by id are known only when the id is. So the object is kept while any such delta is unresolved.
	var kept *content
	if v.first[i] != 0 || len(v.byRef) > 0 {
		if kept, err = v.scratch.alloc(d.size); err != nil {
			return err
		}
		w = io.MultiWriter(w, kept)
	}
	if err = d.apply(w, base.data, v.inflate.buf); err == nil {
		rec.id, err = v.name.id()
	}
	if kept == nil {
		return err
	}
	list := int32(0)
	if err == nil {
		list = v.children(i)
	}
	if list == 0 {
		kept.free()
		return err
	}
	v.stack = append(v.stack, frame{data: kept, child: list, depth: base.depth + 1, kind: base.kind})
	return nil
}
