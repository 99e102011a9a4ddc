package configsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/apply"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

const (
	maxTargets   = 500
	maxHistory   = 10
	maxInventory = 2000
	maxShort     = 256 // bytes of the message of one target
)

// ErrMeanwhile means that another client wrote the ConfigSync while the run was under way.
var ErrMeanwhile = errors.New("another run or user changed the ConfigSync in the meantime: run the command again")

// intend writes what the run is about to own, before the first object is applied: whatever stops the run, no object is untracked. It
// fails if another run wrote the status since the ConfigSync was read.
func (r *Run) intend(ctx context.Context) error {
	inventory := r.inventory(false)
	if len(inventory) > maxInventory {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the ConfigSync would own %d objects; at most %d are allowed: prune some, or split it", len(inventory), maxInventory)
	}
	st := &r.cs.Status
	st.Inventory, r.intended = inventory, true
	r.about(st)
	st.Rollback = r.cs.RollbackNow()
	r.condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "a run is under way: "+r.Plan.Summary())
	r.condition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "a run is under way")
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	written, err := kube.ConfigSyncs(r.own.Dynamic, r.cs.Namespace).Update(ctx, r.cs, metav1.UpdateOptions{}, "status")
	switch {
	case apierrors.IsConflict(err):
		return ErrMeanwhile
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "nothing was changed: the caller may not update configsyncs/status in namespace %s, where a run records what it owns", r.cs.Namespace)
	case err != nil:
		return err
	}
	r.cs, r.known, r.stored = written.DeepCopy(), written.Status.Inventory, written
	return nil
}

// inventory returns what the ConfigSync owns. Until the run is complete, that includes everything it might own.
func (r *Run) inventory(complete bool) []string {
	lines := []string{}
	for _, x := range r.objects {
		e := manifest.Entry{ID: x.want.ID()}
		if plan.Owned(x.live, r.cs.Owner()) {
			e.UID = x.live.GetUID()
		}
		if x.item.Action == plan.Recreate && x.state != v1alpha1.ConfigCreated {
			e.UID = "" // the run gives it another one
		}
		if e.UID != "" || !complete {
			lines = append(lines, e.String())
		}
	}
	for _, x := range r.removals {
		if !x.done {
			lines = append(lines, x.String())
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// about writes what the status is about.
func (r *Run) about(st *v1alpha1.ConfigSyncStatus) {
	st.ObservedGeneration, st.ObservedRequest = r.cs.Generation, r.cs.RequestKey()
	if r.Commit() == "" {
		return
	}
	st.SourceRef, st.SourceRevision, st.SourceRevisionShort, st.SourcePath = r.rendered.Ref, r.rendered.Commit, r.rendered.Commit[:7], r.rendered.Path
	r.condition(v1alpha1.ConditionRefResolved, metav1.ConditionTrue, v1alpha1.ReasonRefResolved, fmt.Sprintf("%s is at %s", r.rendered.Ref, r.rendered.Commit[:7]))
}

func (r *Run) condition(kind string, is metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	meta.SetStatusCondition(&r.cs.Status.Conditions, metav1.Condition{
		Type: kind, Status: is, Reason: string(reason), Message: v1alpha1.TruncateMessage(message), ObservedGeneration: r.cs.Generation,
		LastTransitionTime: metav1.NewTime(r.own.Now()),
	})
}

// outcome sets the status to the outcome of the run.
func (r *Run) outcome(err error) {
	st := &r.cs.Status
	r.about(st)
	if r.rendered == nil {
		r.condition(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, failure.Reason(err, v1alpha1.ReasonGitUnreachable), message(err))
	}
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	if r.Plan != nil {
		r.targets(st, err)
	}
	if err == nil {
		r.succeeded(st)
		return
	}
	if r.intended {
		st.Inventory = r.inventory(false)
	}
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	r.condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message(err))
	switch reason.Class() {
	case v1alpha1.ClassStalled, v1alpha1.ClassHeld:
		r.condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message(err))
	case v1alpha1.ClassRetry, v1alpha1.ClassWorking:
		r.condition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, "the next run tries again")
	}
}

// message is the text of an error for the status. An error without a reason is one of the way to the API server.
func message(err error) string {
	if failure.Reason(err, "") == "" {
		return "the run was interrupted, or the API server did not answer; the next run tries again"
	}
	return err.Error()
}

// Pause says in the status that nothing is applied. What was Ready, and is of the same generation, stays Ready.
func (e *Engine) Pause(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	r := e.begin(cs, kube.Clients{})
	st := &r.cs.Status
	is := metav1.ConditionFalse
	if r.wasReady && st.ObservedGeneration == cs.Generation {
		is = metav1.ConditionTrue
	}
	st.ObservedGeneration, st.ObservedRequest = cs.Generation, cs.RequestKey()
	r.condition(v1alpha1.ConditionReady, is, v1alpha1.ReasonPaused, "paused by spec.paused or by the annotation "+v1alpha1.AnnotationPaused)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	return r.report(ctx, nil)
}

// succeeded sets the status of a run that applied everything.
func (r *Run) succeeded(st *v1alpha1.ConfigSyncStatus) {
	now := metav1.NewTime(r.own.Now().UTC().Truncate(1e9))
	applied := "applied"
	if r.cs.Spec.Apply.Waits() {
		applied = "applied and healthy"
	}
	message := r.heldOff() + fmt.Sprintf("%d objects of %s are %s", len(r.objects), r.Plan.Commit[:7], applied)
	if n := r.Plan.Drifted(); n > 0 {
		message += fmt.Sprintf("; %d of them were changed in the cluster and stay so (driftPolicy report)", n)
	}
	r.condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced, message)
	st.Inventory = r.inventory(true)
	record := v1alpha1.CommitRecord{Ref: r.Plan.Ref, Commit: r.Plan.Commit, At: now}
	if len(st.History) == 0 || st.History[0].Commit != record.Commit {
		st.History = slices.Insert(st.History, 0, record)
		st.History = st.History[:min(len(st.History), maxHistory)]
	}
	if r.cs.Spec.Apply.Waits() && (st.LastGood == nil || st.LastGood.Commit != record.Commit) {
		st.LastGood = &record
	}
	if st.LastSyncedTime == nil || r.Plan.Changes() || !r.wasReady {
		st.LastSyncedTime = &now
	}
}

// targets sets the rows of the status, and the conditions that follow from them.
func (r *Run) targets(st *v1alpha1.ConfigSyncStatus, err error) {
	var rows []v1alpha1.ConfigTargetStatus
	ready, applied, started := 0, 0, false
	for _, x := range r.objects {
		row := x.row(r.cs.Spec.Apply.Waits())
		switch x.state {
		case v1alpha1.ConfigPending, v1alpha1.ConfigHeld, v1alpha1.ConfigFailed:
		default:
			started = started || x.state != v1alpha1.ConfigUnchanged && x.state != v1alpha1.ConfigDrifted
			if x.state != v1alpha1.ConfigDrifted {
				applied++
			}
			if row.Healthy == nil || *row.Healthy {
				ready++
			}
		}
		rows = append(rows, row)
	}
	for _, x := range r.removals {
		if row, there := x.row(); there {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b v1alpha1.ConfigTargetStatus) int { return cmp.Compare(rank(a), rank(b)) })
	st.Targets = rows[:min(len(rows), maxTargets)]
	st.AppliedTargets, st.TargetsReady = int32(applied), fmt.Sprintf("%d/%d", ready, len(r.objects))
	degraded := err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) && (started || failure.Is(err, v1alpha1.ReasonUnhealthy) || failure.Is(err, v1alpha1.ReasonProgressDeadlineExceeded) || failure.Is(err, v1alpha1.ReasonPruneFailed))
	switch {
	case degraded:
		r.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, failure.Reason(err, v1alpha1.ReasonProgressing), "only a part of the commit is applied and healthy")
	default:
		r.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSynced, "no object is between two commits")
	}
	switch {
	case !r.cs.Spec.Apply.Waits():
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionAvailable)
	case ready == len(r.objects):
		r.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonSynced, "all objects are healthy")
	default:
		r.condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnhealthy, fmt.Sprintf("%d of %d objects are applied and healthy", ready, len(r.objects)))
	}
}

func rank(row v1alpha1.ConfigTargetStatus) int {
	switch {
	case row.State == v1alpha1.ConfigFailed:
		return 0
	case row.State == v1alpha1.ConfigHeld:
		return 1
	case row.State == v1alpha1.ConfigPending:
		return 2
	case row.Healthy != nil && !*row.Healthy:
		return 3
	case row.State == v1alpha1.ConfigDrifted:
		return 4
	}
	return 5
}

// health is the health of what was last seen.
func (x *object) health() apply.Health {
	h := apply.HealthOf(x.live)
	if x.want.Confidential() && !h.Healthy {
		h.Message = "it is not healthy" // a controller may repeat a value in its message
	}
	return h
}

// row is the row of an object of the commit.
func (x *object) row(waits bool) v1alpha1.ConfigTargetStatus {
	id := x.want.ID()
	row := v1alpha1.ConfigTargetStatus{Type: id.Type(), Namespace: id.Namespace, Name: id.Name, State: x.state, File: x.want.File}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, brief(x.fault.Error())
		if x.fault.Reason.Class() == v1alpha1.ClassHeld {
			row.State = v1alpha1.ConfigHeld
		}
	case x.item.Action == plan.Hold:
		row.State, row.Reason, row.Message = v1alpha1.ConfigHeld, x.item.Reason, brief(x.item.Message)
	case x.live != nil && waits && x.state != v1alpha1.ConfigPending:
		h := x.health()
		row.Healthy = &h.Healthy
		if !h.Healthy {
			row.Reason, row.Message = v1alpha1.ReasonUnhealthy, brief(h.Message)
		}
	}
	if x.state == v1alpha1.ConfigDrifted && row.Message == "" {
		row.Message = brief("changed in the cluster: " + some(x.item.Fields))
	}
	return row
}

// row is the row of an object that git no longer has, or false if it is of no interest.
func (x *removal) row() (v1alpha1.ConfigTargetStatus, bool) {
	row := v1alpha1.ConfigTargetStatus{Type: x.Type(), Namespace: x.Namespace, Name: x.Name, State: v1alpha1.ConfigPruned}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, brief(x.fault.Error())
	case x.item.Action == plan.Keep:
		row.State, row.Message = v1alpha1.ConfigUnchanged, "git no longer has it: "+brief(x.item.Message)
	case x.item.Action == plan.Prune && !x.done:
		row.State = v1alpha1.ConfigPending
	case x.item.Action != plan.Prune || x.live == nil:
		return row, false
	}
	return row, true
}

func brief(s string) string {
	if len(s) > maxShort {
		return strings.ToValidUTF8(s[:maxShort], "") + "…"
	}
	return s
}

// merge adds what other runs wrote to the inventory since this one read it, so that nothing they applied is untracked.
func (r *Run) merge(now []string) {
	if slices.Equal(now, r.known) {
		return
	}
	ours, gone := map[manifest.ID]bool{}, map[manifest.ID]bool{}
	for _, line := range r.cs.Status.Inventory {
		if e, ok := manifest.ParseEntry(line); ok {
			ours[e.ID] = true
		}
	}
	for _, x := range r.removals {
		gone[x.ID] = x.done
	}
	merged := slices.Clone(r.cs.Status.Inventory)
	for _, line := range now {
		if e, ok := manifest.ParseEntry(line); ok && !ours[e.ID] && !gone[e.ID] {
			merged = append(merged, line)
		}
	}
	slices.Sort(merged)
	r.cs.Status.Inventory = merged[:min(len(merged), maxInventory)]
}

// report writes the status, unless it says what it said before, and sends an Event. It returns err, or why the status was not written.
func (r *Run) report(ctx context.Context, err error) error {
	if r.shared && errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Canceled
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxReport)
	defer cancel()
	r.cs.Status.Rollback = r.cs.RollbackNow()
	failed := r.record(ctx, err)
	for range 2 {
		if apierrors.IsConflict(failed) {
			failed = r.record(ctx, err)
		}
	}
	switch {
	case err != nil || failed == nil:
		return err
	case apierrors.IsConflict(failed):
		return ErrMeanwhile
	}
	return fmt.Errorf("the run is complete, and the status could not be written: %w", failed)
}

// record writes the status over the one that the cluster has now. After the intent, that is most likely the run's own.
func (r *Run) record(ctx context.Context, err error) (failed error) {
	syncs := kube.ConfigSyncs(r.own.Dynamic, r.cs.Namespace)
	now := r.stored
	if r.stored = nil; now == nil {
		now, failed = syncs.Get(ctx, r.cs.Name)
	}
	switch {
	case failed != nil:
		return failed
	case now.UID != r.cs.UID:
		return ErrMeanwhile
	case equality.Semantic.DeepEqual(now.Status, r.cs.Status):
		return nil
	}
	was := now.DeepCopy()
	r.merge(now.Status.Inventory)
	now.Status = r.cs.Status
	if _, failed = syncs.Update(ctx, now, metav1.UpdateOptions{}, "status"); failed == nil {
		r.send(ctx, was, err)
	}
	return failed
}

// waits reports whether a run ended with err because something takes time: the next run continues.
func waits(err error) bool {
	return failure.Is(err, v1alpha1.ReasonProgressing) || failure.Is(err, v1alpha1.ReasonDependencyNotReady)
}

// send sends Events about a run that changed something, or failed in another way than the last one. They are a courtesy: a caller
// without the right to create them loses nothing else.
func (r *Run) send(ctx context.Context, was *v1alpha1.ConfigSync, err error) {
	ready := meta.FindStatusCondition(r.cs.Status.Conditions, v1alpha1.ConditionReady)
	before := meta.FindStatusCondition(was.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return
	}
	kind, reason := corev1.EventTypeNormal, v1alpha1.EventSyncCompleted
	if r.heldOff() != "" {
		reason = v1alpha1.EventRollbackCompleted
	}
	switch {
	case err == nil && (r.Plan == nil || !r.Plan.Changes() && r.wasReady):
		return
	case waits(err): // the next run reports the outcome
		r.changed(ctx)
		return
	case err != nil && before != nil && before.Reason == ready.Reason && before.Message == ready.Message:
		return
	case err != nil && v1alpha1.Reason(ready.Reason).Class() == v1alpha1.ClassHeld:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventSyncHeld
	case err != nil:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventSyncFailed
	}
	r.event(ctx, kind, reason, ready.Message)
	r.changed(ctx)
}

// changed sends Events about the objects that the run repaired or deleted.
func (r *Run) changed(ctx context.Context) {
	var repaired, pruned []string
	for _, x := range r.objects {
		if x.state == v1alpha1.ConfigRepaired {
			repaired = append(repaired, x.item.String()+" ("+some(x.item.Fields)+")")
		}
	}
	for _, x := range r.removals {
		if x.done && x.item.Action == plan.Prune && x.live != nil {
			pruned = append(pruned, x.ID.String())
		}
	}
	if len(repaired) > 0 {
		r.event(ctx, corev1.EventTypeNormal, v1alpha1.EventDriftRepaired, fmt.Sprintf("%d objects were changed in the cluster, and are as git has them again: %s", len(repaired), some(repaired)))
	}
	if len(pruned) > 0 {
		r.event(ctx, corev1.EventTypeNormal, v1alpha1.EventPruned, fmt.Sprintf("%d objects that git no longer has were deleted: %s", len(pruned), some(pruned)))
	}
}

// maxNamed is how many objects or fields a message names.
const maxNamed = 5

func some(list []string) string {
	text := strings.Join(list[:min(len(list), maxNamed)], ", ")
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (r *Run) event(ctx context.Context, kind, reason, note string) {
	if len(note) > 1000 { // the API's bound is 1,024 bytes
		note = strings.ToValidUTF8(note[:1000], "") + "…"
	}
	_, _ = r.own.Core.EventsV1().Events(r.cs.Namespace).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: r.cs.Name + "-", Namespace: r.cs.Namespace},
		EventTime:  metav1.NewMicroTime(r.own.Now()), ReportingController: "stoker.io/config", ReportingInstance: "stoker-config",
		Action: "Sync", Reason: reason, Type: kind, Note: note,
		Regarding: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindConfigSync, Namespace: r.cs.Namespace, Name: r.cs.Name, UID: r.cs.UID,
		},
	}, metav1.CreateOptions{})
}
