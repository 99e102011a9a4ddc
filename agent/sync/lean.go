package sync

import (
	"context"
	"log/slog"
	"path"
	"time"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/internal/backoff"
)

// fetch fetches the target into the store. If the store was lost but the manifest was not, most files on the disk are
// already right, so fetch gets only the trees, and differing gets the missing blobs.
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
		return s.Store.Fetch(ctx, s.conn.Remote, s.t.Commit, s.t.Name)
	}
	return s.Store.FetchTrees(ctx, s.conn.Remote, s.t.Commit, s.t.Name)
}

// remind tells an incomplete store, after a restart, from which remote to fetch the missing objects, because drift
// detection reads what git wanted. It does not fetch them; a store that still cannot get them fails at the read.
func (s *run) remind(ctx context.Context) {
	of := s.lost
	if of == nil || of.commit != s.t.Commit {
		of = &lost{commit: s.t.Commit}
	}
	of.from(s.conn.Remote)
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

// lost is the commit on the disk if the store, as in a recreated pod, has nothing of it. Its trees are fetched when
// drift detection needs the first file, which is rare.
type lost struct {
	remote *repo.Remote
	commit plan.ID
	name   string

	failures int       // in a row
	late     int       // how many of the failures were timeouts
	until    time.Time // time of the next try
}

// from sets the remote. Failures of another remote do not count.
func (l *lost) from(remote *repo.Remote) {
	if l != nil && l.remote != remote {
		l.remote, l.failures, l.late, l.until = remote, 0, 0, time.Time{}
	}
}

// gone drops a lost commit if the disk has another one.
func (e *Engine) gone(h plan.Header) {
	if e.lost != nil && e.lost.commit != h.Commit {
		e.lost = nil
	}
}

// find fetches the lost trees for drift detection. Drift detection runs often, on every agent, and blocks the loop, so
// find has a short timeout and backs off after failures, longer after timeouts. The next commit brings what never
// arrives in time.
func (e *Engine) find(ctx context.Context) {
	of := e.lost
	if of == nil || e.Now().Before(of.until) {
		return
	}
	// The store also uses this context for later fetches, so it is canceled only by a timeout.
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
	if ctx.Err() != nil { // the agent is stopping, which says nothing about git
		return
	}
	of.failures++
	asked, _ := repo.RetryAfter(err)
	pause := max(backoff.Retry(of.failures, backoff.MaxRetry), min(asked, backoff.MaxRetryAfter))
	if slow {
		of.late++
		pause = backoff.AfterTimeout(of.late)
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

// differing fetches in one request the blobs whose wanted id has changed since the last sync, or whose file has other
// bytes. A partial store fetches other blobs (of a file changed on the gateway, of a template) when they are read.
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
