package store

import (
	"context"
	"io"
	"maps"
	"slices"

	"stoker.io/stoker/agent/plan"
)

// resolver computes the ids of the deltas of a pack, depth first. It frees a base as soon as its last child is computed, so that
// a plain chain needs two objects at a time.
type resolver struct {
	*receiver
	// The deltas that build on a record are a linked list. Both slices have 1-based indexes of records; 0 ends a list.
	firstChild, nextSibling []int32
	unresolved              map[plan.ID]int32 // the lists of deltas whose base has this id and is not resolved yet
	stack                   []frame
}

// MissingBaseError is the error of a thin pack that builds on an object that the store does not have.
type MissingBaseError struct{ err error }

func (e *MissingBaseError) Error() string {
	return "the pack needs an object that the store does not have: " + e.err.Error()
}
func (e *MissingBaseError) Unwrap() error { return e.err }

// frame is an object with children that are not resolved yet.
type frame struct {
	data  *scratchObject
	child int32 // the next one to resolve, 1-based
	depth int
	kind  kind
}

// resolve sets the kinds and the ids of all deltas.
func (r *receiver) resolve(ctx context.Context) error {
	if !slices.ContainsFunc(r.recs, func(rec record) bool { return rec.entryKind.delta() }) {
		return nil
	}
	v := &resolver{receiver: r, unresolved: map[plan.ID]int32{}}
	defer v.freeStack()
	if err := v.link(); err != nil {
		return err
	}
	if err := v.resolveOwnBases(ctx); err != nil {
		return err
	}
	if err := v.resolveThinBases(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(r.recs, func(rec record) bool { return rec.kind == 0 }) {
		return corrupt("a delta has no base")
	}
	return nil
}

// freeStack frees the objects that an error left on the stack.
func (v *resolver) freeStack() {
	for _, f := range v.stack {
		f.data.free()
	}
	v.stack = nil
}

// link builds the lists of children.
func (v *resolver) link() error {
	v.firstChild = make([]int32, len(v.recs))
	v.nextSibling = make([]int32, len(v.recs))
	for i := range v.recs {
		switch rec := &v.recs[i]; rec.entryKind {
		case kindOffset:
			j, ok := findByOffset(v.recs, rec.base)
			if !ok {
				return corrupt("the base of a delta is not the start of an entry")
			}
			v.nextSibling[i], v.firstChild[j] = v.firstChild[j], int32(i+1)
		case kindRef:
			id := v.baseIDs[rec.base]
			v.nextSibling[i], v.unresolved[id] = v.unresolved[id], int32(i+1)
		}
	}
	return nil
}

// children returns the first child of record i, whose id is known. It moves the deltas that name this id out of unresolved.
func (v *resolver) children(i int32) int32 {
	list := v.firstChild[i]
	named, ok := v.unresolved[v.recs[i].id]
	if !ok {
		return list
	}
	delete(v.unresolved, v.recs[i].id)
	last := named
	for v.nextSibling[last-1] != 0 {
		last = v.nextSibling[last-1]
	}
	v.nextSibling[last-1] = list
	return named
}

// resolveOwnBases resolves the deltas whose chains start at whole objects of the pack.
func (v *resolver) resolveOwnBases(ctx context.Context) error {
	for i := range v.recs {
		rec := &v.recs[i]
		if rec.entryKind.delta() {
			continue
		}
		list := v.children(int32(i))
		if list == 0 {
			continue
		}
		e, err := v.inflate.openEntry(v.file, rec.off, v.end)
		if err != nil {
			return err
		}
		if err := v.limits.checkDeltaSize(rec.kind, e.size); err != nil {
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

// resolveThinBases resolves the deltas whose bases external has. Another delta may still make a base that external lacks, so a
// base is missing only if no other delta can be resolved.
func (v *resolver) resolveThinBases(ctx context.Context) error {
	for len(v.unresolved) > 0 {
		ids := slices.Collect(maps.Keys(v.unresolved))
		var missing error
		progress := false
		for _, id := range ids {
			list, ok := v.unresolved[id]
			if !ok {
				continue // another walk has resolved it
			}
			k, c, err := v.external(id)
			if IsNotFound(err) {
				missing = err
				continue
			}
			if err != nil {
				return err
			}
			delete(v.unresolved, id)
			progress = true
			v.thinBases = append(v.thinBases, id)
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

// walk resolves all descendants of the object on the stack.
func (v *resolver) walk(ctx context.Context) error {
	for n := 0; len(v.stack) > 0; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		top := &v.stack[len(v.stack)-1]
		i := top.child - 1
		top.child = v.nextSibling[i]
		parent, last := *top, top.child == 0
		if last {
			v.stack = v.stack[:len(v.stack)-1]
		}
		err := v.resolveDelta(i, parent)
		if last {
			parent.data.free()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resolveDelta applies the delta of record i to base and sets its kind and its id. If the result has children, it goes on the
// stack.
func (v *resolver) resolveDelta(i int32, base frame) error {
	rec := &v.recs[i]
	if base.depth == v.limits.DeltaDepth {
		return OverLimit("a chain of deltas is longer than %d", v.limits.DeltaDepth)
	}
	e, err := v.inflate.openEntry(v.file, rec.off, v.end)
	if err != nil {
		return err
	}
	d, err := v.inflate.openDelta(v.inflate.br, e)
	if err != nil {
		return err
	}
	if err := v.limits.checkDeltaSize(base.kind, d.size); err != nil {
		return err
	}
	if err := v.countInflated(d.size); err != nil {
		return err
	}
	rec.kind = base.kind
	w := io.Writer(v.hasher.start(base.kind, d.size))
	// Only the id shows which deltas name the result, so it is kept while any such delta is unresolved.
	var result *scratchObject
	if v.firstChild[i] != 0 || len(v.unresolved) > 0 {
		if result, err = v.scratch.alloc(d.size); err != nil {
			return err
		}
		w = io.MultiWriter(w, result)
	}
	if err = d.apply(w, base.data, v.inflate.buf); err == nil {
		rec.id, err = v.hasher.id()
	}
	if result == nil {
		return err
	}
	list := int32(0)
	if err == nil {
		list = v.children(i)
	}
	if list == 0 {
		result.free()
		return err
	}
	v.stack = append(v.stack, frame{data: result, child: list, depth: base.depth + 1, kind: base.kind})
	return nil
}
