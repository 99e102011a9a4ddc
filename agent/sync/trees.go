package sync

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// trees computes the desired trees of commits from the store, and knows the one on the disk.
type trees struct {
	config *Config
	cache  *desired.Cache

	delivered deliveredTree   // what is on the disk
	lost      *lostTrees      // nil unless the store lost the commit on the disk
	onMissing func()          // called when drift detection needs a file that the store lacks; may be nil
	planning  context.Context //nolint:containedctx // see limit; nil for none
}

// tree returns the tree of a commit as the rules want it on the disk. The tree reads its objects from store.
func (t *trees) tree(store plan.Objects, commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
	root, err := t.config.Store.RootTree(commit)
	if err != nil {
		return nil, err
	}
	return t.cache.NewTree(plan.CancelableObjects{Objects: store, Canceled: t.canceled}, root, rules)
}

// optional is tree for callers that can do without it.
func (t *trees) optional(commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
	return t.tree(optionalStore{t.config.Store}, commit, rules)
}

// limit makes plans and comparisons fail when ctx is done. off ends that: reads after a write must not fail.
func (t *trees) limit(ctx context.Context) (off func()) {
	t.planning = ctx
	return func() { t.planning = nil }
}

func (t *trees) canceled() error {
	if t.planning == nil {
		return nil
	}
	return context.Cause(t.planning)
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

// remember records what is on the disk after a sync to a commit. tree is nil if the sync did not need it.
func (t *trees) remember(h plan.Header, commit plan.ID, rules plan.Rules, tree *desired.Tree) {
	if t.lost != nil && t.lost.commit != h.Commit {
		t.lost = nil
	}
	if h.Commit != commit || h.Rules != rules.Fingerprint() {
		return // the disk has another commit, or this one under other rules
	}
	switch {
	case !rules.Renders():
		t.delivered = deliveredTree{}
	case tree != nil || t.delivered.commit != h.Commit || t.delivered.rules.Fingerprint() != h.Rules:
		t.delivered = deliveredTree{desired: tree, rules: rules, commit: h.Commit}
	}
}

// writeWanted writes a blob of the commit on the disk, for comparing files by meaning. The store lacks rendered files, so it may render all
// files of the commit again.
func (t *trees) writeWanted(w io.Writer, id plan.ID) (int64, error) {
	store := t.config.Store
	if t.onMissing != nil && !store.Has(id) {
		t.onMissing()
	}
	if t.delivered.commit.IsZero() || store.Has(id) {
		return optionalStore{store}.WriteBlob(w, id)
	}
	if t.delivered.desired == nil {
		var err error
		if t.delivered.desired, err = t.tree(store, t.delivered.commit, t.delivered.rules); err != nil {
			return 0, err
		}
	}
	n, err := t.delivered.desired.WriteWanted(w, id)
	if err != nil && n == 0 {
		return optionalStore{store}.WriteBlob(w, id)
	}
	return n, err
}

// attach tells an incomplete store from which remote it can fetch missing objects of the commit on the disk. Drift detection needs this after
// a restart, because it reads what git wanted. attach fetches no files. If the store cannot fetch a file later, that read fails.
func (t *trees) attach(ctx context.Context, remote *repo.Remote, commit plan.ID, name string) {
	lost, store := t.lost, t.config.Store
	if lost == nil || lost.commit != commit {
		lost = &lostTrees{commit: commit}
	}
	lost.setRemote(remote)
	lost.name = name
	t.lost = nil
	switch {
	case !store.Has(commit):
		t.lost = lost
	case store.Partial() && !store.CanFetchBlobs(lost.remote, lost.commit):
		if err := t.fetch(ctx, lost); err != nil {
			t.config.Log.Debug("store cannot fetch missing files", "commit", lost.commit.String(), "error", err)
		}
	}
}

// lostTrees is the commit on the disk if the store has nothing of it, as in a recreated pod. Its trees are fetched when drift detection needs
// the first file, which is rare, or when changes of the gateway are proposed.
type lostTrees struct {
	remote *repo.Remote
	commit plan.ID
	name   string

	failures int       // in a row
	timeouts int       // number of timeouts among the failures
	retryAt  time.Time // time of the next try
	err      error     // of the last failure
}

// setRemote sets the remote. Failures of another remote do not count.
func (l *lostTrees) setRemote(remote *repo.Remote) {
	if l != nil && l.remote != remote {
		l.remote, l.failures, l.timeouts, l.retryAt, l.err = remote, 0, 0, time.Time{}, nil
	}
}

// fetchForDrift makes the store fetch what a comparison needs, until off is called: the lost trees when it needs the first file, and then
// blobs until DriftFetchTimeout is over.
func (t *trees) fetchForDrift(ctx context.Context) (off func()) {
	fetchCtx, cancel := context.WithCancelCause(ctx)
	unlimited := t.config.Store.LimitFetches(fetchCtx)
	t.onMissing = func() {
		t.onMissing = nil // once per comparison
		time.AfterFunc(t.config.DriftFetchTimeout, func() { cancel(context.DeadlineExceeded) })
		t.fetchLost(ctx)
	}
	return func() {
		t.onMissing = nil
		unlimited()
		cancel(nil)
	}
}

// fetchDelivered fetches the trees of the commit on the disk if the store has lost them. After a failure it pauses, as drift detection does.
// During the pause it returns the last error.
func (t *trees) fetchDelivered(ctx context.Context, remote *repo.Remote, commit plan.ID, name string) error {
	store := t.config.Store
	if store.Has(commit) {
		return nil
	}
	lost := t.lost
	if lost == nil || lost.commit != commit {
		lost = &lostTrees{commit: commit, name: name}
		t.lost = lost
	}
	lost.setRemote(remote)
	t.fetchLost(ctx)
	switch {
	case store.Has(commit):
		return nil
	case lost.err == nil: // the agent is stopping
		return ctx.Err()
	}
	return lost.err
}

// maxTimeouts is how often the time limit of fetchLost doubles.
const maxTimeouts = 3

// fetchLost fetches the lost trees. Its callers run often, on every agent, and block the loop. So fetchLost has a short timeout, which grows a
// little, and pauses after failures, longer after timeouts. Trees that never arrive in time come with the next commit.
func (t *trees) fetchLost(ctx context.Context) {
	lost, now, log := t.lost, t.config.Now, t.config.Log
	if lost == nil || now().Before(lost.retryAt) {
		return
	}
	// The store also uses this context for later fetches, so it is canceled only after a failure or a timeout.
	fetchCtx, cancel := context.WithCancelCause(ctx)
	limit := t.config.DriftFetchTimeout << min(lost.timeouts, maxTimeouts)
	timer := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	err := t.fetch(fetchCtx, lost)
	timedOut := !timer.Stop()
	if timedOut {
		err = failure.New(v1alpha1.ReasonGitTimeout, "git has not sent the trees of %s within %s", lost.commit.Short(), limit)
	}
	if err == nil {
		if t.lost = nil; lost.failures > 0 {
			log.Info("comparing files by meaning again", "commit", lost.commit.String())
		}
		return
	}
	cancel(err)
	if ctx.Err() != nil { // the agent is stopping, which says nothing about git
		return
	}
	lost.failures++
	lost.err = err
	asked, _ := backoff.Asked(err)
	pause := max(backoff.Retry(lost.failures, backoff.MaxRetry), asked)
	if timedOut {
		lost.timeouts++
		pause = backoff.AfterTimeout(lost.timeouts)
	}
	lost.retryAt = now().Add(pause)
	level := slog.LevelDebug
	if lost.failures == 1 {
		level = slog.LevelWarn
	}
	log.Log(ctx, level, "git unreachable, rewritten file counts as drift", "commit", lost.commit.String(), "error", err)
}

func (t *trees) fetch(ctx context.Context, lost *lostTrees) error {
	_, err := t.config.Store.FetchTrees(ctx, lost.remote, lost.commit, lost.name)
	return err
}
