package lead

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// fleet is what a term reads and writes.
type fleet interface {
	// sync returns the last seen GatewaySync. The error is errGone if there is none. Another error says why the spec cannot be
	// decoded; the GatewaySync then has only metadata and status.
	sync() (*v1alpha1.GatewaySync, error)
	// reports returns the reports, and by name why others cannot be decoded.
	reports() ([]*v1alpha1.SyncReport, map[string]error)
	pods() []status.Pod
	// sole reports whether the namespace has no other GatewaySync.
	sole(ctx context.Context) bool
	// target returns the last published target.
	target() v1alpha1.SyncTargetSpec
	writeTarget(ctx context.Context, change func(*v1alpha1.SyncTargetSpec)) error
	// readTarget reads what is published, so that target returns it. It fails with errLost if we do not lead any more.
	readTarget(ctx context.Context) error
	// writeStatus changes the status of gs, if it was not written since it was seen and we still lead.
	writeStatus(ctx context.Context, gs *v1alpha1.GatewaySync, change map[string]any) (*v1alpha1.GatewaySync, error)
	sendEvents(gs *v1alpha1.GatewaySync, events []status.Event)
	// changed receives when any of this may have changed.
	changed() <-chan struct{}
}

// term is one agent's time as lead. One goroutine runs it; polls of git and health checks run in parallel.
type term struct {
	fleet
	log     *slog.Logger
	metrics Metrics
	poll    func(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult
	now     func() time.Time
	// stamp returns the time for fields that others read. It does not depend on the clock of this node.
	stamp func() time.Time
	// eligible returns which credential of the spec this agent lacks.
	eligible func(*v1alpha1.GatewaySync) error
	// rotated returns how often a secret has changed.
	rotated func() int64
	// subject returns TargetStatus.Subject of a commit.
	subject func(plan.ID) string

	schedule        pollSchedule
	polls           chan pollResult
	polling         sync.WaitGroup
	abandonPoll     context.CancelFunc // ends the last poll
	lastPoll        pollResult
	resolved        resolved                // by the last successful poll, an earlier lead, or a commit id in the spec
	answeredRequest string                  // the time of the last request that was answered
	request         *v1alpha1.RequestStatus // status.request as this lead computed it last
	requestRead     bool                    // request and answeredRequest are initialized

	written         *v1alpha1.GatewaySync // as we wrote it, until the watch shows it
	replaced        []string              // versions that written replaces
	nextStatus      time.Time             // when the next summary may be made
	statusPending   bool                  // something may have changed since the last summary
	pruned          map[string]any        // what the API server dropped of the last written status: its CRD is older, and lacks a field
	nextSummary     time.Time             // when the summary changes by itself
	nextTargetWrite time.Time             // when to write the target again
	lostWrite       *lostWrite            // the last write of the target, if its answer was lost; else nil
	statusFailures  int                   // failed status writes in a row
	conflictVersion string                // the version whose write caused a conflict
	conflicts       int                   // how often it did
	lastProblem     string                // the last problem that was logged
	targetSince     time.Time             // when the target was set or requested; zero if an earlier lead set it
	rolling         rolling               // how far the rollout of the target is

	// earlierPods are the pods that existed when this agent first lacked a credential.
	earlierPods map[types.UID]bool
}

func newTerm(f fleet, poll func(context.Context, *v1alpha1.GatewaySync, question) pollResult, m Metrics, log *slog.Logger, now func() time.Time) *term {
	return &term{fleet: f, poll: poll, metrics: m, log: log, now: now, stamp: now, polls: make(chan pollResult, 1),
		eligible: func(*v1alpha1.GatewaySync) error { return nil }, rotated: func() int64 { return 0 }, subject: func(plan.ID) string { return "" }}
}

// errGone means that the GatewaySync was deleted.
var errGone = errors.New("the GatewaySync is gone")

// run leads until ctx is done, and then returns nil. Otherwise the error says why it ends earlier, for example because the GatewaySync is gone,
// another agent leads or should lead, or the watch of the GatewaySync stalls.
func (t *term) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.polling.Wait()
	defer cancel()
	defer t.metrics.Clear()
	t.rolling.results = make(chan probe, 1)
	for {
		pause, err := t.iterate(ctx)
		if err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-t.changed():
		case f := <-t.polls:
			t.recordPoll(f)
		case p := <-t.rolling.results:
			t.rolling.recordProbe(p, t.now())
		case <-timer.C:
		}
		timer.Stop()
	}
}

// iterate does everything that is due and returns how long to wait for the next iteration.
func (t *term) iterate(ctx context.Context) (time.Duration, error) {
	gs, invalid := t.view()
	if errors.Is(invalid, errGone) {
		return 0, errGone
	}
	if invalid == nil && t.hasSuccessor(gs) {
		return 0, errSuperseded
	}
	ref, q := t.resolve(ctx, gs, invalid)
	if err := t.publish(ctx, gs, invalid, ref); err != nil {
		return 0, err
	}
	if err := t.report(ctx, gs, invalid, ref); err != nil {
		return 0, err
	}
	return t.pause(q), nil
}

// errSuperseded means that another agent has a credential that this one lacks.
var errSuperseded = errors.New("this pod lacks a credential that the spec names, and another one has started since")

// hasSuccessor reports whether this agent lacks a credential and a newer pod, which should have it, has reported. Otherwise this
// agent continues, because some agent must report what is missing.
func (t *term) hasSuccessor(gs *v1alpha1.GatewaySync) bool {
	if t.eligible(gs) == nil {
		t.earlierPods = nil
		return false
	}
	pods := t.pods()
	if t.earlierPods == nil {
		t.earlierPods = map[types.UID]bool{}
		for _, p := range pods {
			t.earlierPods[p.UID] = true
		}
		return false
	}
	reports, _ := t.reports()
	for _, p := range pods {
		if !p.Ended && !t.earlierPods[p.UID] && slices.ContainsFunc(reports, func(r *v1alpha1.SyncReport) bool { return r.Name == p.Name && status.Owns(p, r) }) {
			return true
		}
	}
	return false
}

// idle is the longest pause between iterations. Nothing depends on it.
const idle = time.Hour

func (t *term) pause(q question) time.Duration {
	now := t.now()
	pause := idle
	due := []time.Time{later(t.nextSummary, t.nextStatus), t.nextTargetWrite, t.rolling.due}
	if q != (question{}) {
		due = append(due, t.schedule.next(q, now))
	}
	for _, at := range due {
		if !at.IsZero() {
			pause = min(pause, at.Sub(now))
		}
	}
	if t.statusPending {
		pause = min(pause, t.nextStatus.Sub(now))
	}
	return max(pause, time.Millisecond)
}

// view returns the GatewaySync, as last written if the watch lags behind.
func (t *term) view() (*v1alpha1.GatewaySync, error) {
	gs, err := t.sync()
	if err != nil {
		return gs, err
	}
	if t.written != nil && slices.Contains(t.replaced, gs.ResourceVersion) {
		return t.written, nil
	}
	t.written, t.replaced = nil, nil
	return gs, nil
}

// publish writes the target if it changed.
func (t *term) publish(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error, ref status.Ref) error {
	t.nextTargetWrite = time.Time{}
	if err := t.resolveLostWrite(ctx); err != nil {
		return t.writeLater(ctx, err)
	}
	is := t.target()
	want := is
	want.Format = v1alpha1.TargetFormat
	want.Paused = gs.Paused()
	want.Requests = annotation.Hash(gs)
	if r := t.resolved; r.commit != "" && r.ref == ref.Desired.Ref && r.git == gitOf(gs) && ref.Desired.CheckCommit(r.commit) == nil {
		want.Generation, want.Ref, want.Commit, want.RefName = gs.Generation, r.ref, r.commit, r.name
		if len(r.name) > 255 || !strings.HasPrefix(r.name, "refs/heads/") && !strings.HasPrefix(r.name, "refs/tags/") {
			want.RefName = "" // then the commit alone identifies the target
		}
		want.RequestedAt = r.requestedAt
		setMoved(&want, is, ref)
		if is.Ref != want.Ref || is.Commit != want.Commit || is.ResolvedAt == nil {
			at := metav1.NewTime(t.stamp().Truncate(time.Second))
			want.ResolvedAt = &at
		}
	} else if setProblem(&want, gs, invalid, ref); want.Commit == "" && want.Problem == nil {
		want.Requests = is.Requests // there is nothing to follow yet
	}
	roll := t.roll(ctx, gs, invalid, ref, is, &want)
	if equality.Semantic.DeepEqual(is, want) {
		t.rolling.recordDecision(roll, is)
		return nil
	}
	if is.Revision == 0 {
		reports, _ := t.reports()
		is.Revision = highestRevision(reports)
	}
	written := func() {
		if want.Commit != is.Commit && ref.Desired.GoesBack(want.Commit, gs.Status.RanEverywhere) {
			t.metrics.RolledBack("request")
		}
		if want.Commit != is.Commit || want.Ref != is.Ref {
			t.targetSince = begun(is, want)
		}
		if r := want.Rollout; r != nil && r.Back && (is.Rollout == nil || !is.Rollout.Back) {
			t.metrics.RolledBack("rollout")
		}
		t.rolling.recordDecision(roll, t.target())
		t.log.Info("the target is written", "ref", want.Ref, "commit", want.Commit, "generation", want.Generation, "paused", want.Paused,
			"requestedAt", want.RequestedAt, "restore", annotation.Line(gs.Annotations[v1alpha1.AnnotationRestore]), "retry", annotation.Retry(gs), "forceSync", annotation.ForceSync(gs))
	}
	var sent v1alpha1.SyncTargetSpec
	err := t.writeTarget(ctx, func(s *v1alpha1.SyncTargetSpec) {
		setTarget(s, want, is.Revision)
		sent = *s.DeepCopy()
	})
	if err != nil {
		if !errors.Is(err, errUnconfirmed) { // with errUnconfirmed, nothing was written
			t.lostWrite = &lostWrite{sent, written}
		}
		return t.writeLater(ctx, err)
	}
	written()
	return nil
}

// writeLater schedules the next try to write the target, unless the term is over.
func (t *term) writeLater(ctx context.Context, err error) error {
	if errors.Is(err, errLost) || ctx.Err() != nil {
		return err
	}
	t.logProblem("the target cannot be written; trying again", err)
	t.nextTargetWrite = t.now().Add(backoff.Jitter(firstRetry))
	return nil
}

// report writes the status if it changed and a write is due, and sends its events.
func (t *term) report(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error, ref status.Ref) error {
	now := t.now()
	t.statusPending = true
	if t.conflicts > 1 && t.conflictVersion != gs.ResourceVersion {
		t.conflicts, t.nextStatus = 0, now // the watch has caught up
	}
	if now.Before(t.nextStatus) {
		return nil
	}
	var flawed map[string]error
	if invalid == nil {
		flawed, invalid = validate(gs)
	}
	reports, unreadable := t.reports()
	stamp := t.stamp()
	sum := status.Summarize(status.Seen{GatewaySync: gs, Invalid: invalid, Flawed: flawed, Ref: ref, Target: t.target(), Subject: t.targetSubject(), Rollout: t.rolling.status(gs), Reports: reports,
		Unreadable: unreadable, Pods: t.pods(), Sole: t.sole(ctx), Now: stamp})
	again := refreshConfirmedAt(&sum.Status, stamp)
	if !sum.Again.IsZero() && sum.Again.Before(again) {
		again = sum.Again
	}
	t.nextSummary, t.nextStatus = now.Add(again.Sub(stamp)), now.Add(minSummary)
	t.metrics.Set(fleetState(sum, t.target()))
	ready := meta.FindStatusCondition(sum.Status.Conditions, v1alpha1.ConditionReady)
	t.metrics.Iterated("lead", string(v1alpha1.Reason(ready.Reason).Class()), t.now().Sub(now))
	change, err := kube.StatusDifference(&gs.Status, &sum.Status)
	if err != nil || change == nil || equality.Semantic.DeepEqual(change, t.pruned) {
		t.statusPending = false
		return err
	}
	sum.Status.ConfirmedAt = &metav1.Time{Time: stamp.Truncate(time.Second)} // any write confirms the status
	change["confirmedAt"] = sum.Status.ConfirmedAt
	sent := t.now()
	is, err := t.writeStatus(ctx, gs, change)
	switch {
	case err == nil:
		t.statusPending = false
		if t.pruned, err = kube.StatusDifference(&is.Status, &sum.Status); err != nil {
			return err
		}
		t.keepWritten(gs, is, ready)
		t.converged(gs.Status.LastGood, is.Status.LastGood)
		t.sendEvents(is, sum.Events)
		got := t.now()
		t.nextStatus, t.statusFailures, t.lastProblem = got.Add(statusPause(got.Sub(sent))), 0, ""
		return nil
	case errors.Is(err, errLost), ctx.Err() != nil:
		return err
	case errors.Is(err, errUnconfirmed): // nothing was written; the next renewal confirms the lock
		t.nextStatus = now.Add(minStatus)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		t.written, t.replaced = nil, nil
		return t.afterConflict(gs.ResourceVersion, now)
	}
	t.logProblem("the status cannot be written; trying again", err)
	t.statusFailures++
	t.nextStatus = now.Add(backoff.Jitter(min(minStatus<<min(t.statusFailures-1, 10), time.Minute)))
	return nil
}

// targetSubject returns the subject of the target's commit, or "".
func (t *term) targetSubject() string {
	id, err := plan.ParseID(t.target().Commit)
	if err != nil {
		return ""
	}
	return t.subject(id)
}

// refreshConfirmedAt updates the confirmation time of a status if it is old, and returns when the next update is due. A time in the future
// is replaced.
func refreshConfirmedAt(st *v1alpha1.GatewaySyncStatus, now time.Time) time.Time {
	if at := st.ConfirmedAt; at == nil || at.After(now) || now.Sub(at.Time) >= v1alpha1.ConfirmEvery {
		st.ConfirmedAt = &metav1.Time{Time: now.Truncate(time.Second)}
	}
	return st.ConfirmedAt.Add(v1alpha1.ConfirmEvery)
}

// errWatchStalled means that the watch does not deliver changes. The next campaign opens a new one.
var errWatchStalled = errors.New("the watch of the GatewaySync does not deliver changes")

// maxConflicts is how often a write may cause a conflict for the same version: half a minute with doubling pauses.
const maxConflicts = 7

// afterConflict schedules the next write after one that caused a conflict. The watch should show a newer version by then. It returns
// errWatchStalled if the same version has caused too many conflicts.
func (t *term) afterConflict(version string, now time.Time) error {
	if t.conflictVersion != version {
		t.conflictVersion, t.conflicts = version, 0
	}
	if t.conflicts++; t.conflicts > maxConflicts {
		return errWatchStalled
	}
	t.nextStatus = now.Add(minStatus / 4 << (t.conflicts - 1))
	return nil
}

// keepWritten keeps the written object until the watch shows it.
func (t *term) keepWritten(was, is *v1alpha1.GatewaySync, ready *metav1.Condition) {
	t.written, t.replaced = is, append(t.replaced, was.ResourceVersion)
	if n := len(t.replaced); n > 16 {
		t.replaced = t.replaced[n-16:]
	}
	if c := meta.FindStatusCondition(was.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != ready.Status || c.Reason != ready.Reason {
		t.log.Info("status", "ready", string(ready.Status), "reason", ready.Reason, "message", ready.Message)
	}
}

func (t *term) logProblem(what string, err error) {
	if t.lastProblem != what {
		t.log.Warn(what, "error", err)
	}
	t.lastProblem = what
}
