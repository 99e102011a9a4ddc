package sync

import (
	"context"
	"errors"
	"io"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/repo"
)

// desiredTree returns the tree of a commit as the rules want it on the disk. It reads objects from store.
func (e *Engine) desiredTree(store plan.Objects, commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
	root, err := e.Store.RootTree(commit)
	if err != nil {
		return nil, err
	}
	return e.cache.NewTree(plan.CancelableObjects{Objects: store, Canceled: e.planCanceled}, root, rules)
}

// previousTree returns the tree that the manifest was written for.
func (f *files) previousTree(h plan.Header) (*desired.Tree, error) {
	rules, err := f.rulesAt(h.Ref, h.Commit)
	if err != nil {
		return nil, err
	}
	rules.Form = f.rules.Form
	return f.desiredTree(optionalStore{f.Store}, h.Commit, rules)
}

// limitPlanning makes plans and comparisons fail when ctx is done. off ends that: reads after a write must not fail.
func (e *Engine) limitPlanning(ctx context.Context) (off func()) {
	e.planContext = ctx
	return func() { e.planContext = nil }
}

func (e *Engine) planCanceled() error {
	if e.planContext == nil {
		return nil
	}
	return context.Cause(e.planContext)
}

// optionalStore is a store for callers that can do without missing objects. A failed read does not count as damage.
type optionalStore struct{ *repo.Store }

func (s optionalStore) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	if !s.Has(id) && !s.Partial() { // a partial store fetches what it can
		return 0, errNotStored
	}
	return s.Store.WriteBlob(w, id)
}

var errNotStored = errors.New("the object is not in the store any more")

// deliveredTree is the tree on the disk, as far as it is known. It is needed because the store lacks rendered files.
type deliveredTree struct {
	desired *desired.Tree // nil until needed
	rules   plan.Rules
	commit  plan.ID
}

// rememberDelivered records what is on the disk now.
func (j *job) rememberDelivered(h plan.Header) {
	if h.Commit != j.t.Commit || h.Rules != j.rules.Fingerprint() {
		return // the sync did not change the disk
	}
	switch {
	case !j.rules.Renders():
		j.delivered = deliveredTree{}
	case j.desired != nil || j.delivered.commit != h.Commit || j.delivered.rules.Fingerprint() != h.Rules:
		j.delivered = deliveredTree{desired: j.desired, rules: j.rules, commit: h.Commit}
	}
}

// writeWanted writes a blob of the last sync, for comparing the disk by meaning. After a restart it renders it again.
func (e *Engine) writeWanted(w io.Writer, id plan.ID) (int64, error) {
	if e.onMissing != nil && !e.Store.Has(id) {
		e.onMissing()
	}
	if e.delivered.commit.IsZero() || e.Store.Has(id) {
		return optionalStore{e.Store}.WriteBlob(w, id)
	}
	if e.delivered.desired == nil {
		var err error
		if e.delivered.desired, err = e.desiredTree(e.Store, e.delivered.commit, e.delivered.rules); err != nil {
			return 0, err
		}
	}
	n, err := e.delivered.desired.WriteWanted(w, id)
	if err != nil && n == 0 {
		return optionalStore{e.Store}.WriteBlob(w, id)
	}
	return n, err
}
