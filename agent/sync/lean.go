package sync

import (
	"context"
	"path"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
)

// fetch brings the target into the store. Where the store was lost and the manifest was not, the right bytes of most files
// lie on the disk already: then it is the trees alone, and differing brings the rest.
func (s *run) fetch(ctx context.Context) (repo.FetchStats, error) {
	h := s.dir.Manifest().Header()
	lost := h.Complete && h.Files > 0 && (s.Store.Partial() || !s.Store.Has(h.Commit))
	if !lost || s.force {
		return s.Store.Fetch(ctx, s.peers.Remote, s.t.Commit, s.t.Name)
	}
	return s.Store.FetchTrees(ctx, s.peers.Remote, s.t.Commit, s.t.Name)
}

// remind tells a store that has not all of a commit, after a restart, where the rest can be had: a look at drift reads what
// git wanted. It sends nothing, and a store that cannot be reminded says so when it is read.
func (s *run) remind(ctx context.Context) {
	s.lost = nil
	of := &lost{remote: s.peers.Remote, commit: s.t.Commit, name: s.t.Name}
	switch {
	case !s.Store.Has(s.t.Commit):
		s.lost = of
	case s.Store.Partial():
		_ = s.trees(ctx, of)
	}
}

// lost is the commit that lies on the disk where the store, of a pod that was made anew, has nothing of it. Its trees are
// fetched when a look at drift asks for the first of its files: most never do.
type lost struct {
	remote *repo.Remote
	commit plan.ID
	name   string
}

// find fetches what is lost, at the first question of a look at drift: until it has come, each look asks once.
func (e *Engine) find(ctx context.Context) {
	if of := e.lost; of != nil {
		if e.trees(ctx, of) == nil {
			e.lost = nil
		}
	}
}

func (e *Engine) trees(ctx context.Context, of *lost) error {
	_, err := e.Store.FetchTrees(ctx, of.remote, of.commit, of.name)
	if err != nil {
		e.Log.Debug("the store has not all files of the commit, and cannot get them", "commit", of.commit.String(), "error", err)
	}
	return err
}

// differing fetches the blobs that git wants otherwise than at the last sync, or that lie on the disk in other words, all in
// one request. What else is read of a store that has only trees (a file that was changed on the gateway, a template) the
// store fetches when it is read.
func (s *run) differing(ctx context.Context) error {
	if !s.Store.Partial() {
		return nil
	}
	var ids []plan.ID
	for d, err := range s.desired.Walk() {
		if err != nil {
			return err
		}
		rec, owned, err := s.dir.Manifest().Get(d.Path)
		if err != nil {
			return err
		}
		if !owned || rec.Want != d.ID || rec.Have != d.ID && path.Base(d.Path) != resource.Thumbnail {
			ids = append(ids, d.ID)
		}
	}
	stats, err := s.Store.FetchBlobs(ctx, ids)
	s.r.Fetch.Objects += stats.Objects
	s.r.Fetch.Bytes += stats.Bytes
	return err
}
