package follow

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
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

// reporter writes the SyncReport when it differs from the stored one in more than times. It writes only the newest report, and
// retries until it succeeds.
type reporter struct {
	objects *kube.Objects[v1alpha1.SyncReport]
	who     Identity
	log     *slog.Logger
	now     func() time.Time
	woken   chan struct{}

	mu    gosync.Mutex
	want  *v1alpha1.SyncReportStatus
	since time.Time // when want last changed in more than times
	doubt time.Time // when to read the report because it may have been reverted; zero for never

	// Used by run only.
	there    *v1alpha1.SyncReport // the stored report; nil if unknown or absent
	known    bool
	mangled  bool // the stored report cannot be decoded
	wrote    time.Time
	check    time.Time // when to check that the report still exists
	failures int
	retry    time.Time
}

const (
	fieldManager = "stoker-agent"
	writeTimeout = 10 * time.Second
	// calm is the pause between two writes, small the pause if only messages or drift differ.
	calm  = time.Second
	small = 10 * time.Second
	// brief is how long a sync must run to be reported; a shorter one is reported by its outcome.
	brief = time.Second
	// maxReport is the longest pause between two attempts.
	maxReport = 30 * time.Second
	// again is how often to check that the report exists. The garbage collector may delete a report that was adopted from an
	// earlier pod with this name, or a user may delete it. The check is sooner than the lead gives up waiting for a report.
	// soon is the time until the check after an adoption.
	again = 8 * time.Minute
	soon  = 30 * time.Second
)

func newReporter(objects *kube.Objects[v1alpha1.SyncReport], who Identity, log *slog.Logger, now func() time.Time) *reporter {
	return &reporter{objects: objects, who: who, log: log, now: now, woken: make(chan struct{}, 1)}
}

// update replaces the report to write by follows(was), where was is the previous one, possibly inherited from an earlier agent
// of this pod. Both are accessed under the lock, so that an inherited report is not lost. follows must not block.
func (r *reporter) update(follows func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus) {
	r.mu.Lock()
	var was v1alpha1.SyncReportStatus
	if r.want != nil {
		was = *r.want
	}
	status := follows(was)
	if r.want == nil || weight(r.want, &status) != nothing {
		r.since = r.now()
	}
	r.want = &status
	r.mu.Unlock()
	select {
	case r.woken <- struct{}{}:
	default: // it is awake
	}
}

// doubted schedules a read of the report because the API server may have been restored from a backup. The times vary between
// agents.
func (r *reporter) doubted() {
	r.mu.Lock()
	if r.doubt.IsZero() {
		r.doubt = r.now().Add(rand.N(small))
	}
	r.mu.Unlock()
	select {
	case r.woken <- struct{}{}:
	default: // it is awake
	}
}

// difference is how much two reports differ.
type difference int

const (
	nothing difference = iota // at most in times
	words                     // in the messages, the drift, the counts of a proposal, or the result of a scan
	all
)

func weight(a, b *v1alpha1.SyncReportStatus) difference {
	x, y := *a, *b
	x.Started, y.Started, x.Duration, y.Duration = nil, nil, "", ""
	if equality.Semantic.DeepEqual(x, y) {
		return nothing
	}
	x.Proposal, y.Proposal = wordless(x.Proposal), wordless(y.Proposal)
	x.Message, y.Message, x.Scan, y.Scan, x.Drift, y.Drift = "", "", "", "", v1alpha1.DriftFiles{}, v1alpha1.DriftFiles{}
	if equality.Semantic.DeepEqual(x, y) {
		return words
	}
	return all
}

// wordless returns a copy of a proposal without its message and counts.
func wordless(p *v1alpha1.Proposal) *v1alpha1.Proposal {
	if p == nil {
		return nil
	}
	w := *p
	w.Message, w.Files, w.Refused = "", 0, 0
	return &w
}

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
	want, since, look := r.want, r.since, earliest(r.check, r.doubt)
	r.mu.Unlock()
	if want == nil {
		return r.now().Add(again)
	}
	if r.retry.After(r.now()) {
		return r.retry
	}
	if !r.known {
		return time.Time{}
	}
	d := all
	if r.there != nil {
		d = weight(&r.there.Status, want)
	}
	due := r.wrote.Add(calm)
	switch {
	case d == nothing:
		return look
	case d == words:
		due = r.wrote.Add(small)
	case want.Phase == v1alpha1.GatewaySyncing && since.Add(brief).After(due):
		due = since.Add(brief)
	}
	return due
}

// iterate runs one step and records its outcome.
func (r *reporter) iterate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
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
		r.log.Warn("the report is not written; it is tried again", "error", err)
	}
}

// step reads the report if it is unknown or due for a check, and writes it otherwise.
func (r *reporter) step(ctx context.Context) error {
	r.mu.Lock()
	look := earliest(r.check, r.doubt)
	r.mu.Unlock()
	if !r.known || !r.now().Before(look) {
		return r.read(ctx)
	}
	return r.write(ctx)
}

func (r *reporter) read(ctx context.Context) error {
	there, err := r.objects.Get(ctx, r.who.Pod)
	undecodable, mangled := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
		there = nil
	case mangled:
		r.log.Warn("replacing a SyncReport of another writer", "error", undecodable)
		there = nil
	case err != nil:
		return err
	}
	r.mu.Lock()
	r.doubt = time.Time{}
	r.mu.Unlock()
	first := !r.known
	r.there, r.known, r.mangled = there, true, mangled
	r.check = r.now().Add(backoff.Jitter(again))
	if first && there != nil {
		r.inherit(there)
	}
	return nil
}

// inherit adopts fields from an earlier agent of this pod, so that a restarted agent writes nothing if nothing happened.
func (r *reporter) inherit(there *v1alpha1.SyncReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, t := *r.want, there.Status
	if r.owns(there) && w.Proposal == nil && w.Started == nil {
		w.Proposal = t.Proposal
		r.want = &w
	}
	if !r.owns(there) || w.Commit != t.Commit || w.Started != nil {
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
func (r *reporter) owns(there *v1alpha1.SyncReport) bool {
	if r.who.PodUID == "" {
		return true
	}
	for _, o := range there.OwnerReferences {
		if o.UID == types.UID(r.who.PodUID) {
			return true
		}
	}
	return false
}

func (r *reporter) write(ctx context.Context) error {
	r.mu.Lock()
	want := *r.want.DeepCopy()
	r.mu.Unlock()
	report := &v1alpha1.SyncReport{ObjectMeta: r.meta(), Status: want}
	taken := r.there != nil && !r.owns(r.there)
	var err error
	switch {
	case r.mangled:
		r.there, err = r.replace(ctx, report)
	case r.there == nil:
		r.there, err = r.objects.Create(ctx, report, metav1.CreateOptions{FieldManager: fieldManager})
	default:
		report.ResourceVersion = r.there.ResourceVersion
		r.there, err = r.objects.Update(ctx, report, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		// After an error the stored report is unknown.
		r.there, r.known = nil, false
		return err
	}
	r.wrote, r.mangled = r.now(), false
	if taken {
		r.check = r.wrote.Add(soon)
	}
	return nil
}

// replace overwrites a report that cannot be decoded.
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
	m := metav1.ObjectMeta{Name: r.who.Pod, Namespace: r.who.Namespace, Labels: map[string]string{v1alpha1.LabelCRName: r.who.GatewaySync}}
	if r.who.PodUID != "" {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: r.who.Pod, UID: types.UID(r.who.PodUID)}}
	}
	return m
}

// flush writes what is pending until ctx ends. Call it after run has returned.
func (r *reporter) flush(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		want := r.want
		r.mu.Unlock()
		if want == nil || r.known && r.there != nil && weight(&r.there.Status, want) == nothing {
			return
		}
		r.check = r.now().Add(again)
		if err := r.step(ctx); err != nil {
			r.log.Warn("the last report is not written", "error", err)
			backoff.Wait(ctx, backoff.Jitter(200*time.Millisecond))
		}
	}
}
