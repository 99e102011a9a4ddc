package sync

import (
	"context"
	"errors"
	"io"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/repo"
)

// desire returns the tree of a commit as the rules want it on the disk.
func (e *Engine) desire(commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
	root, err := e.Store.RootTree(commit)
	if err != nil {
		return nil, err
	}
	return e.cache.NewTree(objects{e.Store, e}, root, rules)
}

// previous returns the tree that the manifest was written for.
func (j *job) previous(h plan.Header) (*desired.Tree, error) {
	rules, err := j.rulesAt(h.Ref, h.Commit)
	if err != nil {
		return nil, err
	}
	rules.Form = j.rules.Form
	root, err := j.Store.RootTree(h.Commit)
	if err != nil {
		return nil, err
	}
	return j.cache.NewTree(objects{spare{j.Store}, j.Engine}, root, rules)
}

// objects reads trees and blobs until the context of Engine.during ends. plan takes no context, and a large commit has
// many trees.
type objects struct {
	plan.Objects
	e *Engine
}

func (o objects) Tree(id plan.ID) ([]plan.Entry, error) {
	if err := o.e.stopped(); err != nil {
		return nil, err
	}
	return o.Objects.Tree(id)
}

func (o objects) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	return o.Objects.WriteBlob(stoppable{w, o.e}, id)
}

type stoppable struct {
	io.Writer
	e *Engine
}

func (s stoppable) Write(b []byte) (int, error) {
	if err := s.e.stopped(); err != nil {
		return 0, err
	}
	return s.Writer.Write(b)
}

// during makes plans and comparisons fail when ctx is done, until off is called. Reads after files were written must not fail.
func (e *Engine) during(ctx context.Context) (off func()) {
	e.planning = ctx
	return func() { e.planning = nil }
}

func (e *Engine) stopped() error {
	if e.planning == nil {
		return nil
	}
	return context.Cause(e.planning)
}

// spare is a store for callers that can do without missing objects.
type spare struct{ *repo.Store }

func (s spare) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if !s.Has(id) && !s.Partial() { // a partial store fetches what it can
		return 0, errGone
	}
	return s.Store.WriteBlob(w, id)
}

var errGone = errors.New("the object is not in the store any more")

// delivered is the tree on the disk, as far as it is known. No store has its rendered files.
type delivered struct {
	desired *desired.Tree // nil until needed
	rules   plan.Rules
	commit  plan.ID
}

// remember records what is on the disk now.
func (j *job) remember(h plan.Header) {
	if h.Commit != j.t.Commit || h.Rules != j.rules.Fingerprint() {
		return // the sync did not change the disk
	}
	switch {
	case !j.rules.Renders():
		j.last = delivered{}
	case j.desired != nil || j.last.commit != h.Commit || j.last.rules.Fingerprint() != h.Rules:
		j.last = delivered{desired: j.desired, rules: j.rules, commit: h.Commit}
	}
}

// wanted writes the bytes that git wanted at the last sync, for comparing the disk by meaning. After a restart it
// renders that tree again.
func (e *Engine) wanted(w io.Writer, id plan.ID) (int64, error) {
	if e.asked != nil && !e.Store.Has(id) {
		e.asked()
	}
	if e.last.commit.IsZero() || e.Store.Has(id) {
		return spare{e.Store}.WriteBlob(w, id)
	}
	if e.last.desired == nil {
		var err error
		if e.last.desired, err = e.desire(e.last.commit, e.last.rules); err != nil {
			return 0, err
		}
	}
	n, err := e.last.desired.WriteWanted(w, id)
	if err != nil && n == 0 {
		return spare{e.Store}.WriteBlob(w, id)
	}
	return n, err
}
