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
	maxTargets    = 500
	maxHistory    = 10
	maxInventory  = 2000
	maxRowMessage = 256 // bytes of the message of one target
)

// ErrConcurrentChange means that another client wrote the ConfigSync while the run was under way.
var ErrConcurrentChange = errors.New("another run or user changed the ConfigSync in the meantime: run the command again")

// writeIntent writes the inventory that the run is about to own, before it applies the first object. If the run is interrupted, every
// object that it applied is in the inventory. writeIntent fails if another client wrote the ConfigSync since it was read.
func (r *Run) writeIntent(ctx context.Context) error {
	inventory := r.inventory(false)
	if len(inventory) > maxInventory {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the ConfigSync would own %d objects; at most %d are allowed: prune some, or split it", len(inventory), maxInventory)
	}
	st := &r.cs.Status
	st.Inventory, r.wroteIntent = inventory, true
	r.setSource(st)
	st.Rollback = r.cs.RollbackNow()
	r.setCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "a run is under way: "+r.Plan.Summary())
	r.setCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "a run is under way")
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	written, err := kube.ConfigSyncs(r.statusClients.Dynamic, r.cs.Namespace).Update(ctx, r.cs, metav1.UpdateOptions{}, "status")
	switch {
	case apierrors.IsConflict(err):
		return ErrConcurrentChange
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "nothing was changed: the caller may not update configsyncs/status in namespace %s, where a run records what it owns", r.cs.Namespace)
	case err != nil:
		return err
	}
	r.cs, r.lastInventory, r.intent = written.DeepCopy(), written.Status.Inventory, written
	return nil
}

// inventory returns the lines of the objects that the ConfigSync owns. If complete is false, it also has those that the run may create.
func (r *Run) inventory(complete bool) []string {
	lines := []string{}
	for _, x := range r.objects {
		e := manifest.Entry{ID: x.want.ID()}
		if plan.Owned(x.live, r.cs.Owner()) {
			e.UID = x.live.GetUID()
		}
		if x.item.Action == plan.Recreate && x.state != v1alpha1.ConfigCreated {
			e.UID = "" // the recreated object gets another UID
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

// setSource writes the generation, the request and the commit of the run into the status.
func (r *Run) setSource(st *v1alpha1.ConfigSyncStatus) {
	st.ObservedGeneration, st.ObservedRequest = r.cs.Generation, r.cs.RequestKey()
	if r.Commit() == "" {
		return
	}
	st.SourceRef, st.SourceRevision, st.SourceRevisionShort, st.SourcePath = r.rendered.Ref, r.rendered.Commit, r.rendered.Commit[:7], r.rendered.Path
	r.setCondition(v1alpha1.ConditionRefResolved, metav1.ConditionTrue, v1alpha1.ReasonRefResolved, fmt.Sprintf("%s is at %s", r.rendered.Ref, r.rendered.Commit[:7]))
}

func (r *Run) setCondition(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	meta.SetStatusCondition(&r.cs.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: string(reason), Message: v1alpha1.TruncateMessage(message), ObservedGeneration: r.cs.Generation,
		LastTransitionTime: metav1.NewTime(r.statusClients.Now()),
	})
}

// setOutcome sets the status to the outcome of the run.
func (r *Run) setOutcome(err error) {
	st := &r.cs.Status
	r.setSource(st)
	if r.rendered == nil {
		r.setCondition(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, failure.Reason(err, v1alpha1.ReasonGitUnreachable), message(err))
	}
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	if r.Plan != nil {
		r.setTargets(st, err)
	}
	if err == nil {
		r.setSucceeded(st)
		return
	}
	if r.wroteIntent {
		st.Inventory = r.inventory(false)
	}
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	r.setCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message(err))
	switch reason.Class() {
	case v1alpha1.ClassStalled, v1alpha1.ClassHeld:
		r.setCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message(err))
	case v1alpha1.ClassRetry, v1alpha1.ClassWorking:
		r.setCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, "the next run tries again")
	}
}

// message returns the text of an error for the status. An error without a reason means that the API server could not be reached.
func message(err error) string {
	if failure.Reason(err, "") == "" {
		return "the run was interrupted, or the API server did not answer; the next run tries again"
	}
	return err.Error()
}

// Pause writes into the status that the ConfigSync is paused. Ready stays true if it was true for the same generation.
func (e *Engine) Pause(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	r := e.newRun(cs, kube.Clients{})
	st := &r.cs.Status
	ready := metav1.ConditionFalse
	if r.wasReady && st.ObservedGeneration == cs.Generation {
		ready = metav1.ConditionTrue
	}
	st.ObservedGeneration, st.ObservedRequest = cs.Generation, cs.RequestKey()
	r.setCondition(v1alpha1.ConditionReady, ready, v1alpha1.ReasonPaused, "paused by spec.paused or by the annotation "+v1alpha1.AnnotationPaused)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	return r.report(ctx, nil)
}

// setSucceeded sets the status of a run that applied everything.
func (r *Run) setSucceeded(st *v1alpha1.ConfigSyncStatus) {
	now := metav1.NewTime(r.statusClients.Now().UTC().Truncate(1e9))
	applied := "applied"
	if r.cs.Spec.Apply.Waits() {
		applied = "applied and healthy"
	}
	message := r.rollbackNote() + fmt.Sprintf("%d objects of %s are %s", len(r.objects), r.Plan.Commit[:7], applied)
	if n := r.Plan.Drifted(); n > 0 {
		message += fmt.Sprintf("; %d of them were changed in the cluster and stay so (driftPolicy report)", n)
	}
	r.setCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced, message)
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

// setTargets sets the rows of the status, and the conditions that follow from them.
func (r *Run) setTargets(st *v1alpha1.ConfigSyncStatus, err error) {
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
		if row, ok := x.row(); ok {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b v1alpha1.ConfigTargetStatus) int { return cmp.Compare(rowRank(a), rowRank(b)) })
	st.Targets = rows[:min(len(rows), maxTargets)]
	st.AppliedTargets, st.TargetsReady = int32(applied), fmt.Sprintf("%d/%d", ready, len(r.objects))
	degraded := err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) && (started || failure.Is(err, v1alpha1.ReasonUnhealthy) || failure.Is(err, v1alpha1.ReasonProgressDeadlineExceeded) || failure.Is(err, v1alpha1.ReasonPruneFailed))
	switch {
	case degraded:
		r.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, failure.Reason(err, v1alpha1.ReasonProgressing), "only a part of the commit is applied and healthy")
	default:
		r.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSynced, "no object is between two commits")
	}
	switch {
	case !r.cs.Spec.Apply.Waits():
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionAvailable)
	case ready == len(r.objects):
		r.setCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonSynced, "all objects are healthy")
	default:
		r.setCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnhealthy, fmt.Sprintf("%d of %d objects are applied and healthy", ready, len(r.objects)))
	}
}

func rowRank(row v1alpha1.ConfigTargetStatus) int {
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

// health returns the health of the object as it was last read.
func (x *object) health() apply.Health {
	h := apply.HealthOf(x.live)
	if x.want.Confidential() && !h.Healthy {
		h.Message = "it is not healthy" // a controller may repeat a value in its message
	}
	return h
}

// row returns the status row of an object of the commit.
func (x *object) row(waits bool) v1alpha1.ConfigTargetStatus {
	id := x.want.ID()
	row := v1alpha1.ConfigTargetStatus{Type: id.Type(), Namespace: id.Namespace, Name: id.Name, State: x.state, File: x.want.File}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, truncate(x.fault.Error())
		if x.fault.Reason.Class() == v1alpha1.ClassHeld {
			row.State = v1alpha1.ConfigHeld
		}
	case x.item.Action == plan.Hold:
		row.State, row.Reason, row.Message = v1alpha1.ConfigHeld, x.item.Reason, truncate(x.item.Message)
	case x.live != nil && waits && x.state != v1alpha1.ConfigPending:
		h := x.health()
		row.Healthy = &h.Healthy
		if !h.Healthy {
			row.Reason, row.Message = v1alpha1.ReasonUnhealthy, truncate(h.Message)
		}
	}
	if x.state == v1alpha1.ConfigDrifted && row.Message == "" {
		row.Message = truncate("changed in the cluster: " + joinFirst(x.item.Fields))
	}
	return row
}

// row returns the status row of an object that git no longer has, or false if the status does not list it.
func (x *removal) row() (v1alpha1.ConfigTargetStatus, bool) {
	row := v1alpha1.ConfigTargetStatus{Type: x.Type(), Namespace: x.Namespace, Name: x.Name, State: v1alpha1.ConfigPruned}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, truncate(x.fault.Error())
	case x.item.Action == plan.Keep:
		row.State, row.Message = v1alpha1.ConfigUnchanged, "git no longer has it: "+truncate(x.item.Message)
	case x.item.Action == plan.Prune && !x.done:
		row.State = v1alpha1.ConfigPending
	case x.item.Action != plan.Prune || x.live == nil:
		return row, false
	}
	return row, true
}

func truncate(s string) string {
	if len(s) > maxRowMessage {
		return strings.ToValidUTF8(s[:maxRowMessage], "") + "…"
	}
	return s
}

// mergeInventory adds the lines that other runs wrote since this run read the inventory, so that it has every object that they applied.
func (r *Run) mergeInventory(now []string) {
	if slices.Equal(now, r.lastInventory) {
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

// report writes the status if it changed, and sends an Event. It returns err, or if err is nil, why the status could not be written.
func (r *Run) report(ctx context.Context, err error) error {
	if r.replicated && errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Canceled
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	r.cs.Status.Rollback = r.cs.RollbackNow()
	failed := r.writeStatus(ctx, err)
	for range 2 {
		if apierrors.IsConflict(failed) {
			failed = r.writeStatus(ctx, err)
		}
	}
	switch {
	case err != nil || failed == nil:
		return err
	case apierrors.IsConflict(failed):
		return ErrConcurrentChange
	}
	return fmt.Errorf("the run is complete, and the status could not be written: %w", failed)
}

// writeStatus replaces the status in the cluster. Its first call after writeIntent uses the result of that write, which saves a read.
func (r *Run) writeStatus(ctx context.Context, err error) (failed error) {
	syncs := kube.ConfigSyncs(r.statusClients.Dynamic, r.cs.Namespace)
	now := r.intent
	if r.intent = nil; now == nil {
		now, failed = syncs.Get(ctx, r.cs.Name)
	}
	switch {
	case failed != nil:
		return failed
	case now.UID != r.cs.UID:
		return ErrConcurrentChange
	case equality.Semantic.DeepEqual(now.Status, r.cs.Status):
		return nil
	}
	was := now.DeepCopy()
	r.mergeInventory(now.Status.Inventory)
	now.Status = r.cs.Status
	if _, failed = syncs.Update(ctx, now, metav1.UpdateOptions{}, "status"); failed == nil {
		r.sendEvents(ctx, was, err)
	}
	return failed
}

// willContinue reports whether err only means that something takes time, so that the next run continues this one.
func willContinue(err error) bool {
	return failure.Is(err, v1alpha1.ReasonProgressing) || failure.Is(err, v1alpha1.ReasonDependencyNotReady)
}

// sendEvents sends Events if the run changed an object, or failed in another way than the last run. Events are best effort: the caller
// may lack the right to create them.
func (r *Run) sendEvents(ctx context.Context, was *v1alpha1.ConfigSync, err error) {
	ready := meta.FindStatusCondition(r.cs.Status.Conditions, v1alpha1.ConditionReady)
	before := meta.FindStatusCondition(was.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return
	}
	kind, reason := corev1.EventTypeNormal, v1alpha1.EventSyncCompleted
	if r.rollbackNote() != "" {
		reason = v1alpha1.EventRollbackCompleted
	}
	switch {
	case err == nil && (r.Plan == nil || !r.Plan.Changes() && r.wasReady):
		return
	case willContinue(err): // the next run reports the outcome
		r.sendChangeEvents(ctx)
		return
	case err != nil && before != nil && before.Reason == ready.Reason && before.Message == ready.Message:
		return
	case err != nil && v1alpha1.Reason(ready.Reason).Class() == v1alpha1.ClassHeld:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventSyncHeld
	case err != nil:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventSyncFailed
	}
	r.sendEvent(ctx, kind, reason, ready.Message)
	r.sendChangeEvents(ctx)
}

// sendChangeEvents sends Events about the objects that the run repaired or deleted.
func (r *Run) sendChangeEvents(ctx context.Context) {
	var repaired, pruned []string
	for _, x := range r.objects {
		if x.state == v1alpha1.ConfigRepaired {
			repaired = append(repaired, x.item.String()+" ("+joinFirst(x.item.Fields)+")")
		}
	}
	for _, x := range r.removals {
		if x.done && x.item.Action == plan.Prune && x.live != nil {
			pruned = append(pruned, x.ID.String())
		}
	}
	if len(repaired) > 0 {
		r.sendEvent(ctx, corev1.EventTypeNormal, v1alpha1.EventDriftRepaired, fmt.Sprintf("%d objects were changed in the cluster, and are as git has them again: %s", len(repaired), joinFirst(repaired)))
	}
	if len(pruned) > 0 {
		r.sendEvent(ctx, corev1.EventTypeNormal, v1alpha1.EventPruned, fmt.Sprintf("%d objects that git no longer has were deleted: %s", len(pruned), joinFirst(pruned)))
	}
}

// maxNamed bounds the objects or fields that a message names.
const maxNamed = 5

// joinFirst joins the first entries of a list, and adds the number of the others.
func joinFirst(list []string) string {
	text := strings.Join(list[:min(len(list), maxNamed)], ", ")
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (r *Run) sendEvent(ctx context.Context, kind, reason, note string) {
	if len(note) > 1000 { // the API's bound is 1,024 bytes
		note = strings.ToValidUTF8(note[:1000], "") + "…"
	}
	_, _ = r.statusClients.Core.EventsV1().Events(r.cs.Namespace).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: r.cs.Name + "-", Namespace: r.cs.Namespace},
		EventTime:  metav1.NewMicroTime(r.statusClients.Now()), ReportingController: "stoker.io/config", ReportingInstance: "stoker-config",
		Action: "Sync", Reason: reason, Type: kind, Note: note,
		Regarding: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindConfigSync, Namespace: r.cs.Namespace, Name: r.cs.Name, UID: r.cs.UID,
		},
	}, metav1.CreateOptions{})
}
