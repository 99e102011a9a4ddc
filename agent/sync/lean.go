package sync

import (
	"context"
	"log/slog"
	"path"
	"time"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/internal/pace"
)

// fetch brings the target into the store. Where the store was lost and the manifest was not, the right bytes of most files
// lie on the disk already: then it is the trees alone, and differing brings the rest.
func (s *run) fetch(ctx context.Context) (repo.FetchStats, error) {
	h := s.dir.Manifest().Header()
	if s.t.Admit != nil && h.Commit != s.t.Commit {
		name, err := s.t.Admit(ctx)
		if err != nil {
			return repo.FetchStats{}, err
		}
		s.t.Name = name
	}
	lost := h.Complete && h.Files > 0 && (s.Store.Partial() || !s.Store.Has(h.Commit))
	if !lost || s.force {
		return s.Store.Fetch(ctx, s.peers.Remote, s.t.Commit, s.t.Name)
	}
	return s.Store.FetchTrees(ctx, s.peers.Remote, s.t.Commit, s.t.Name)
}

// remind tells a store that has not all of a commit, after a restart, where the rest can be had: a look at drift reads what
// git wanted. It sends nothing, and a store that cannot be reminded says so when it is read.
func (s *run) remind(ctx context.Context) {
	of := s.lost
	if of == nil || of.commit != s.t.Commit {
		of = &lost{commit: s.t.Commit}
	}
	of.from(s.peers.Remote)
	of.name = s.t.Name
	s.lost = nil
	switch {
	case !s.Store.Has(s.t.Commit):
		s.lost = of
	case s.Store.Partial() && !s.Store.Promises(of.remote, of.commit):
		if err := s.trees(ctx, of); err != nil {
			s.Log.Debug("the store has not all files of the commit, and cannot get them", "commit", of.commit.String(), "error", err)
		}
	}
}

// lost is the commit that lies on the disk where the store, of a pod that was made anew, has nothing of it. Its trees are
// fetched when a look at drift asks for the first of its files: most never do.
type lost struct {
	remote *repo.Remote
	commit plan.ID
	name   string

	failures int       // in a row
	late     int       // of them, how often the time of a look was not enough
	until    time.Time // when it is asked for again
}

// from takes note of where it can be had now. What another could not give says nothing of this one.
func (l *lost) from(remote *repo.Remote) {
	if l != nil && l.remote != remote {
		l.remote, l.failures, l.late, l.until = remote, 0, 0, time.Time{}
	}
}

// gone forgets the commit that was lost where another lies on the disk.
func (e *Engine) gone(h plan.Header) {
	if e.lost != nil && e.lost.commit != h.Commit {
		e.lost = nil
	}
}

// find fetches what is lost, at the first question of a look at drift. Looks are many, on every agent, and nothing else is
// heard meanwhile: so the question is a short one, and is asked again with pauses, with long ones where the answer is too: what
// does not come in that time comes with the next commit.
func (e *Engine) find(ctx context.Context) {
	of := e.lost
	if of == nil || e.Now().Before(of.until) {
		return
	}
	// What the store can still get it gets with this context, at later looks, too: it ends only where the time was not enough.
	asking, end := context.WithCancelCause(ctx)
	late := time.AfterFunc(e.LookWait, func() { end(context.DeadlineExceeded) })
	err := e.trees(asking, of)
	slow := !late.Stop()
	if slow && err == nil {
		err = context.DeadlineExceeded
	}
	if err == nil {
		if e.lost = nil; of.failures > 0 {
			e.Log.Info("files that the gateway wrote are compared with git by their meaning again", "commit", of.commit.String())
		}
		return
	}
	end(err)
	if ctx.Err() != nil { // we are asked to stop: that says nothing of git
		return
	}
	of.failures++
	asked, _ := repo.RetryAfter(err)
	pause := max(pace.Retry(of.failures, pace.MaxRetry), min(asked, pace.MaxAsked))
	if slow {
		of.late++
		pause = pace.TooSlow(of.late)
	}
	of.until = e.Now().Add(pause)
	level := slog.LevelDebug
	if of.failures == 1 {
		level = slog.LevelWarn
	}
	e.Log.Log(ctx, level, "git cannot be asked what it has of a file that the gateway wrote, so that it counts as drift", "commit", of.commit.String(), "error", err)
}

func (e *Engine) trees(ctx context.Context, of *lost) error {
	_, err := e.Store.FetchTrees(ctx, of.remote, of.commit, of.name)
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
