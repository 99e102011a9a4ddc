package follow

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	gosync "sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
)

// reporter writes the SyncReport when it differs from the stored one in more than its timestamps. It writes only the newest report, and
// retries until it succeeds.
type reporter struct {
	objects *kube.Objects[v1alpha1.SyncReport]
	id      Identity
	log     *slog.Logger
	now     func() time.Time
	woken   chan struct{}

	mu    gosync.Mutex
	want  *v1alpha1.SyncReportStatus // the newest report; nil before the first
	since time.Time                  // when want last changed in more than its timestamps

	// Used by run only, and by flush after it.
	stored   *v1alpha1.SyncReport // the stored report; nil if unknown or absent
	loaded   bool
	corrupt  bool          // the stored report cannot be decoded
	wrote    time.Time     // when the report was last written
	took     time.Duration // how long that took
	check    time.Time     // when to check that the report still exists
	failures int           // in a row
	retry    time.Time     // after the last failure
}

const (
	fieldManager = "stoker-agent"
	// minPause is the shortest pause between two writes, minorPause the one before a minor difference is written.
	minPause   = time.Second
	minorPause = 10 * time.Second
	// minSyncing is how long a sync must run until the phase Syncing is reported. Of a shorter one, only the outcome is reported.
	minSyncing = time.Second
	// slowdown is the ratio of a pause to the time that a write takes.
	slowdown = 10
	// maxReport is the longest pause between two attempts.
	maxReport = 30 * time.Second
	// checkEvery is how often to read the report and the GatewaySync again. A user may delete the report, a restored backup of the API server has
	// an older one, and the garbage collector may delete one that was adopted from an earlier pod of this name: checkAdopted is the time from an
	// adoption to the next check. The default progress deadline is longer.
	checkEvery   = 8 * time.Minute
	checkAdopted = 30 * time.Second
)

func newReporter(objects *kube.Objects[v1alpha1.SyncReport], id Identity, log *slog.Logger, now func() time.Time) *reporter {
	return &reporter{objects: objects, id: id, log: log, now: now, woken: make(chan struct{}, 1)}
}

// update replaces the report to write with derive(was), where was is the previous one, possibly inherited from an earlier agent of this
// pod. It holds the lock meanwhile, so that an inherited report is not lost. derive must not block.
func (r *reporter) update(derive func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus) {
	r.mu.Lock()
	var was v1alpha1.SyncReportStatus
	if r.want != nil {
		was = *r.want
	}
	status := derive(was)
	if r.want == nil || compare(r.want, &status) != onlyTimes {
		r.since = r.now()
	}
	r.want = &status
	r.mu.Unlock()
	r.wake()
}

func (r *reporter) wake() {
	select {
	case r.woken <- struct{}{}:
	default: // a wake-up is pending
	}
}

// difference is how much two reports differ.
type difference int

const (
	onlyTimes difference = iota // none, or only in timestamps and in the history
	minor                       // in the messages, the drift, the counts of a proposal, or the result of a scan
	major
)

func compare(a, b *v1alpha1.SyncReportStatus) difference {
	x, y := *a, *b
	x.Started, y.Started, x.Duration, y.Duration = nil, nil, "", ""
	x.SyncHistory, y.SyncHistory = nil, nil // a new entry comes with another difference
	if equality.Semantic.DeepEqual(x, y) {
		return onlyTimes
	}
	x.Proposal, y.Proposal = withoutCounts(x.Proposal), withoutCounts(y.Proposal)
	x.Message, y.Message, x.Scan, y.Scan, x.Drift, y.Drift = "", "", "", "", v1alpha1.DriftFiles{}, v1alpha1.DriftFiles{}
	if equality.Semantic.DeepEqual(x, y) {
		return minor
	}
	return major
}

// retries reports whether the new report, is, only shows a retry after the failure in the last one, was, which may pass. The failure stays
// reported meanwhile.
func retries(was, is *v1alpha1.SyncReportStatus) bool {
	passing := func(s *v1alpha1.SyncReportStatus) bool {
		return s.Phase == v1alpha1.GatewayError && s.Reason.Class() == v1alpha1.ClassRetry && s.Reason.Cause() != v1alpha1.CauseCommit
	}
	return passing(was) && (passing(is) || is.Reason.Class() == v1alpha1.ClassWorking) &&
		was.Target == is.Target && was.Revision == is.Revision && was.Generation == is.Generation
}

// withoutCounts returns a copy of a proposal without its message and counts.
func withoutCounts(p *v1alpha1.Proposal) *v1alpha1.Proposal {
	if p == nil {
		return nil
	}
	w := *p
	w.Message, w.Files, w.Refused = "", 0, 0
	return &w
}

// run writes reports until ctx is done.
func (r *reporter) run(ctx context.Context) {
	for {
		timer := time.NewTimer(max(r.next().Sub(r.now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.woken:
		case <-timer.C:
			if !r.now().Before(r.next()) {
				r.iterate(ctx)
			}
		}
		timer.Stop()
	}
}

// next returns when the next step is due: a write, a retry, or a check of the report.
func (r *reporter) next() time.Time {
	r.mu.Lock()
	want, since := r.want, r.since
	r.mu.Unlock()
	if want == nil {
		return r.now().Add(checkEvery)
	}
	if r.retry.After(r.now()) {
		return r.retry
	}
	if !r.loaded {
		return time.Time{}
	}
	d, again := major, false
	if r.stored != nil {
		d, again = compare(&r.stored.Status, want), retries(&r.stored.Status, want)
	}
	due := r.wrote.Add(min(r.slowed(minPause), minorPause)) // an outcome waits at most minorPause
	switch {
	case d == onlyTimes:
		return r.check
	case d == minor, again && want.Phase == v1alpha1.GatewayError:
		due = r.wrote.Add(r.slowed(minorPause))
	case want.Phase == v1alpha1.GatewaySyncing, want.Reason.Class() == v1alpha1.ClassWorking && r.slowed(0) > minPause:
		lasting := since.Add(r.slowed(minSyncing))
		if again {
			lasting = since.Add(maxReport)
		}
		if latest := r.wrote.Add(maxReport); latest.Before(lasting) && latest.After(since) { // messages that change all the time
			lasting = latest
		}
		if lasting.After(due) {
			due = lasting
		}
	}
	return due
}

// slowed returns a pause that grows with the time of the last write: an API server that is slow to answer is asked less, and reports that the
// next one replaces are not written at all.
func (r *reporter) slowed(pause time.Duration) time.Duration {
	return max(pause, min(slowdown*r.took, maxReport))
}

// iterate runs one step and records its outcome.
func (r *reporter) iterate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, kube.RequestTimeout)
	defer cancel()
	err := r.step(ctx)
	if err == nil {
		if r.failures > 0 {
			r.log.Info("the report is written again", "failures", r.failures)
		}
		r.failures, r.retry = 0, time.Time{}
		return
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // the agent stops
	}
	r.failures++
	r.retry = r.now().Add(backoff.Retry(r.failures, maxReport))
	if r.failures == 1 {
		r.log.Warn("the report is not written; trying again", "error", err)
	}
}

// step reads the report if it is unknown or due for a check, and writes it otherwise.
func (r *reporter) step(ctx context.Context) error {
	if !r.loaded || !r.now().Before(r.check) {
		return r.read(ctx)
	}
	return r.write(ctx)
}

// read reads the stored report. The first time, the report to write inherits from it.
func (r *reporter) read(ctx context.Context) error {
	stored, err := r.objects.Get(ctx, r.id.Pod)
	undecodable, corrupt := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
		stored = nil
	case corrupt:
		r.log.Warn("replacing a SyncReport of another writer", "error", undecodable)
		stored = nil
	case err != nil:
		return err
	}
	first := !r.loaded
	r.stored, r.loaded, r.corrupt = stored, true, corrupt
	r.check = r.now().Add(backoff.Jitter(checkEvery))
	if first && stored != nil {
		r.inherit(stored)
	}
	return nil
}

// inherit adopts fields from an earlier agent of this pod, so that a restarted agent writes nothing if nothing happened.
func (r *reporter) inherit(stored *v1alpha1.SyncReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, t := *r.want, stored.Status
	if r.owns(stored) && w.Proposal == nil && w.Started == nil {
		w.Proposal = t.Proposal
		r.want = &w
	}
	if !r.owns(stored) || w.Commit != t.Commit || w.Started != nil {
		return
	}
	w.Started, w.Duration, w.Files, w.Projects, w.Scan = t.Started, t.Duration, t.Files, t.Projects, t.Scan
	if w.HandledRequest == "" {
		w.HandledRequest = t.HandledRequest
	}
	if w.HandledForceSync == "" {
		w.HandledForceSync = t.HandledForceSync
	}
	if w.Phase == t.Phase && w.Reason == t.Reason && w.Target == t.Target {
		w.Message = t.Message
	}
	r.want = &w
}

// owns reports whether the report belongs to this pod.
func (r *reporter) owns(stored *v1alpha1.SyncReport) bool {
	if r.id.PodUID == "" {
		return true
	}
	for _, o := range stored.OwnerReferences {
		if o.UID == types.UID(r.id.PodUID) {
			return true
		}
	}
	return false
}

// write creates or replaces the stored report.
func (r *reporter) write(ctx context.Context) error {
	r.mu.Lock()
	want := *r.want.DeepCopy()
	r.mu.Unlock()
	report := &v1alpha1.SyncReport{ObjectMeta: r.meta(), Status: want}
	adopts := r.stored != nil && !r.owns(r.stored)
	begun := time.Now()
	defer func() { r.took = time.Since(begun) }()
	var err error
	switch {
	case r.corrupt:
		r.stored, err = r.replace(ctx, report)
	case r.stored == nil:
		r.stored, err = r.objects.Create(ctx, report, metav1.CreateOptions{FieldManager: fieldManager})
	default:
		report.ResourceVersion = r.stored.ResourceVersion
		r.stored, err = r.objects.Update(ctx, report, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		// After an error the stored report is unknown.
		r.stored, r.loaded = nil, false
		return err
	}
	r.wrote, r.corrupt = r.now(), false
	if adopts {
		r.check = r.wrote.Add(checkAdopted)
	}
	return nil
}

// replace overwrites a stored report that cannot be decoded.
func (r *reporter) replace(ctx context.Context, report *v1alpha1.SyncReport) (*v1alpha1.SyncReport, error) {
	patch := []map[string]any{
		{"op": "replace", "path": "/status", "value": report.Status},
		{"op": "add", "path": "/metadata/labels", "value": report.Labels},
		{"op": "add", "path": "/metadata/ownerReferences", "value": report.OwnerReferences},
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return r.objects.Patch(ctx, report.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: fieldManager})
}

func (r *reporter) meta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: r.id.Pod, Namespace: r.id.Namespace, Labels: map[string]string{v1alpha1.LabelCRName: r.id.GatewaySync}}
	if r.id.PodUID != "" {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: r.id.Pod, UID: types.UID(r.id.PodUID)}}
	}
	return m
}

// flush writes what is pending, and retries until ctx is done. Call it after run has returned.
func (r *reporter) flush(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		want := r.want
		r.mu.Unlock()
		if want == nil || r.loaded && r.stored != nil && compare(&r.stored.Status, want) == onlyTimes {
			return
		}
		r.check = r.now().Add(checkEvery)
		if err := r.step(ctx); err != nil {
			r.log.Warn("the last report is not written", "error", err)
			backoff.Wait(ctx, backoff.Jitter(200*time.Millisecond))
		}
	}
}
