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
	lost := h.Complete && h.Files > 0 && (f.Store.Partial() || !f.Store.Has(h.Commit))
	if !lost || f.force {
		return f.Store.Fetch(ctx, f.conn.Remote, f.t.Commit, f.t.Name)
	}
	return f.Store.FetchTrees(ctx, f.conn.Remote, f.t.Commit, f.t.Name)
}

// remind tells an incomplete store, after a restart, from which remote to fetch the missing objects, because drift
// detection reads what git wanted. It does not fetch them; a store that still cannot get them fails at the read.
func (j *job) remind(ctx context.Context) {
	of := j.lost
	if of == nil || of.commit != j.t.Commit {
		of = &lost{commit: j.t.Commit}
	}
	of.from(j.conn.Remote)
	of.name = j.t.Name
	j.lost = nil
	switch {
	case !j.Store.Has(j.t.Commit):
		j.lost = of
	case j.Store.Partial() && !j.Store.CanFetchBlobs(of.remote, of.commit):
		if err := j.trees(ctx, of); err != nil {
			j.Log.Debug("store cannot fetch missing files", "commit", of.commit.String(), "error", err)
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
			e.Log.Info("comparing files by meaning again", "commit", of.commit.String())
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
	e.Log.Log(ctx, level, "git unreachable, rewritten file counts as drift", "commit", of.commit.String(), "error", err)
}

func (e *Engine) trees(ctx context.Context, of *lost) error {
	_, err := e.Store.FetchTrees(ctx, of.remote, of.commit, of.name)
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
