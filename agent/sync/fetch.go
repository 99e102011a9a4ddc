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
// already right, so fetch gets only the trees, and fetchBlobs gets the missing blobs.
func (f *files) fetch(ctx context.Context) (repo.FetchStats, error) {
	h := f.dir.Manifest().Header()
	if f.t.Admit != nil && h.Commit != f.t.Commit {
		name, err := f.t.Admit(ctx)
		if err != nil {
			return repo.FetchStats{}, err
		}
		f.t.Name = name
	}
	storeLost := h.Complete && h.Files > 0 && (f.Store.Partial() || !f.Store.Has(h.Commit))
	if !storeLost || f.force {
		return f.Store.Fetch(ctx, f.conn.Remote, f.t.Commit, f.t.Name)
	}
	return f.Store.FetchTrees(ctx, f.conn.Remote, f.t.Commit, f.t.Name)
}

// attachRemote tells an incomplete store, after a restart, from which remote it can fetch missing objects, because drift
// detection reads what git wanted. It fetches no files. If the store cannot fetch a file later, that read fails.
func (j *job) attachRemote(ctx context.Context) {
	lost := j.lostTrees
	if lost == nil || lost.commit != j.t.Commit {
		lost = &lostTrees{commit: j.t.Commit}
	}
	lost.setRemote(j.conn.Remote)
	lost.name = j.t.Name
	j.lostTrees = nil
	switch {
	case !j.Store.Has(j.t.Commit):
		j.lostTrees = lost
	case j.Store.Partial() && !j.Store.CanFetchBlobs(lost.remote, lost.commit):
		if err := j.fetchTrees(ctx, lost); err != nil {
			j.Log.Debug("store cannot fetch missing files", "commit", lost.commit.String(), "error", err)
		}
	}
}

// lostTrees is the commit on the disk if the store has nothing of it, as in a recreated pod. The Engine fetches its trees
// when drift detection needs the first file, which is rare.
type lostTrees struct {
	remote *repo.Remote
	commit plan.ID
	name   string

	failures int       // in a row
	timeouts int       // number of timeouts among the failures
	retryAt  time.Time // time of the next try
}

// setRemote sets the remote. Failures of another remote do not count.
func (l *lostTrees) setRemote(remote *repo.Remote) {
	if l != nil && l.remote != remote {
		l.remote, l.failures, l.timeouts, l.retryAt = remote, 0, 0, time.Time{}
	}
}

// fetchLostTrees fetches the lost trees for drift detection. Drift detection runs often, on every agent, and blocks the
// loop. So fetchLostTrees has a short timeout, and pauses after failures, longer after timeouts. Trees that never arrive in
// time come with the next commit.
func (e *Engine) fetchLostTrees(ctx context.Context) {
	lost := e.lostTrees
	if lost == nil || e.Now().Before(lost.retryAt) {
		return
	}
	// The store also uses this context for later fetches, so it is canceled only after a failure or a timeout.
	fetchCtx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(e.DriftFetchTimeout, func() { cancel(context.DeadlineExceeded) })
	err := e.fetchTrees(fetchCtx, lost)
	timedOut := !timer.Stop()
	if timedOut && err == nil {
		err = context.DeadlineExceeded
	}
	if err == nil {
		if e.lostTrees = nil; lost.failures > 0 {
			e.Log.Info("comparing files by meaning again", "commit", lost.commit.String())
		}
		return
	}
	cancel(err)
	if ctx.Err() != nil { // the agent is stopping, which says nothing about git
		return
	}
	lost.failures++
	retryAfter, _ := repo.RetryAfter(err)
	pause := max(backoff.Retry(lost.failures, backoff.MaxRetry), min(retryAfter, backoff.MaxRetryAfter))
	if timedOut {
		lost.timeouts++
		pause = backoff.AfterTimeout(lost.timeouts)
	}
	lost.retryAt = e.Now().Add(pause)
	level := slog.LevelDebug
	if lost.failures == 1 {
		level = slog.LevelWarn
	}
	e.Log.Log(ctx, level, "git unreachable, rewritten file counts as drift", "commit", lost.commit.String(), "error", err)
}

func (e *Engine) fetchTrees(ctx context.Context, lost *lostTrees) error {
	_, err := e.Store.FetchTrees(ctx, lost.remote, lost.commit, lost.name)
	return err
}

// fetchBlobs fetches in one request the blobs whose wanted id has changed since the last sync, or whose file has other
// bytes. A partial store fetches other blobs (of a file changed on the gateway, of a template) when they are read.
func (f *files) fetchBlobs(ctx context.Context) error {
	if !f.Store.Partial() {
		return nil
	}
	var ids []plan.ID
	for d, err := range f.desired.Walk() {
		if err != nil {
			return err
		}
		rec, owned, err := f.dir.Manifest().Get(d.Path)
		if err != nil {
			return err
		}
		if !owned || rec.Want != d.ID || rec.Have != d.ID && path.Base(d.Path) != resource.Thumbnail {
			ids = append(ids, d.ID)
		}
	}
	stats, err := f.Store.FetchBlobs(ctx, ids)
	f.r.Fetch.Objects += stats.Objects
	f.r.Fetch.Bytes += stats.Bytes
	return err
}
