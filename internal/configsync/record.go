package configsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

const (
	// maxInventory bounds the lines of status.inventory.
	maxInventory = 2000
	// reportTimeout bounds the last writes of a run. They are made even if the run is interrupted, except as Engine.StatusClients says.
	reportTimeout = 15 * time.Second
)

// ErrConcurrentChange means that another client wrote the ConfigSync while the run was under way.
var ErrConcurrentChange = errors.New("another run or user changed the ConfigSync in the meantime: run the command again")

// record writes the status of a ConfigSync, and sends its Events.
type record struct {
	// cs has the status to write.
	cs         *v1alpha1.ConfigSync
	clients    kube.Clients
	replicated bool // other replicas may take over
	// last is the status as it was last read or written.
	last v1alpha1.ConfigSyncStatus
	// intent is the ConfigSync as writeIntent wrote it. The first replace consumes it, and then need not read the object.
	intent *v1alpha1.ConfigSync
	// overtaken means that another run wrote the status meanwhile. Then write changes only the inventory, and returns ErrConcurrentChange
	// unless inventoryOnly is set. A run that only prunes sets inventoryOnly, because it says nothing about the commit.
	inventoryOnly, overtaken bool
}

// newRecord returns a record that writes with the StatusClients of the engine, or else with the given clients.
func (e *Engine) newRecord(cs *v1alpha1.ConfigSync, clients kube.Clients) *record {
	r := &record{cs: cs.DeepCopy(), clients: clients, last: *cs.Status.DeepCopy()}
	if e.StatusClients != nil {
		r.clients, r.replicated = *e.StatusClients, true
	}
	return r
}

// conditions are the types of the conditions of a ConfigSync.
var conditions = []string{v1alpha1.ConditionReady, v1alpha1.ConditionRefResolved, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled,
	v1alpha1.ConditionAvailable, v1alpha1.ConditionDegraded}

// isForeign reports whether a condition belongs to another writer.
func isForeign(c metav1.Condition) bool { return !slices.Contains(conditions, c.Type) }

// setCondition sets a condition, with at most 1024 bytes of its message. Conditions of other writers stay if there is room for them.
func (r *record) setCondition(kind string, value metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	r.cs.Status.Conditions = status.FitConditions(r.cs.Status.Conditions, conditions)
	meta.SetStatusCondition(&r.cs.Status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: string(reason), Message: failure.Cut(message, 1024), ObservedGeneration: r.cs.Generation,
		LastTransitionTime: metav1.NewTime(r.clients.Now()),
	})
}

// writeIntent writes the status before a run changes anything. It fails if another client wrote the ConfigSync since it was read.
func (r *record) writeIntent(ctx context.Context) error {
	derive(r.cs)
	written, err := kube.ConfigSyncs(r.clients.Dynamic, r.cs.Namespace).Update(ctx, r.cs, metav1.UpdateOptions{}, "status")
	switch {
	case apierrors.IsConflict(err):
		return ErrConcurrentChange
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "nothing was changed: the caller may not update configsyncs/status in namespace %s, where a run records what it owns", r.cs.Namespace)
	case err != nil:
		return err
	}
	r.cs, r.last, r.intent = written.DeepCopy(), *written.Status.DeepCopy(), written
	return nil
}

// checkOvertaken returns ErrConcurrentChange if another run wrote the status since it was last read or written.
func (r *record) checkOvertaken(ctx context.Context) error {
	now, err := kube.ConfigSyncs(r.clients.Dynamic, r.cs.Namespace).Get(ctx, r.cs.Name)
	if err != nil {
		return err
	}
	if r.overtake(&now.Status); r.overtaken {
		return ErrConcurrentChange
	}
	return nil
}

// overtake sets overtaken if now differs from what this run last read or wrote. Other writers may change the conditions that are their own.
func (r *record) overtake(now *v1alpha1.ConfigSyncStatus) {
	byRun := func(st *v1alpha1.ConfigSyncStatus) *v1alpha1.ConfigSyncStatus {
		st = st.DeepCopy()
		st.Request = nil // a run sets it before it begins
		st.Conditions = slices.DeleteFunc(st.Conditions, isForeign)
		return st
	}
	if !equality.Semantic.DeepEqual(byRun(now), byRun(&r.last)) {
		r.overtaken, r.intent = true, nil
	}
}

// write writes the status after a run, even if another client wrote it meanwhile. It returns the ConfigSync as it was before,
// or nil if it already had this status. gone are the objects that the run removed from the inventory.
func (r *record) write(ctx context.Context, gone map[manifest.ID]bool) (before *v1alpha1.ConfigSync, err error) {
	derive(r.cs)
	before, err = r.replace(ctx, gone)
	for range 2 {
		if apierrors.IsConflict(err) {
			before, err = r.replace(ctx, gone)
		}
	}
	if apierrors.IsInvalid(err) { // write at least the conditions, or those of another commit stay
		r.cs.Status.Targets = nil
		before, err = r.replace(ctx, gone)
	}
	switch {
	case apierrors.IsConflict(err), err == nil && r.overtaken && !r.inventoryOnly:
		return nil, ErrConcurrentChange
	case err == nil:
		return before, nil
	}
	return nil, fmt.Errorf("the run is complete, but the status could not be written: %w", err)
}

// replace replaces the status in the cluster once.
func (r *record) replace(ctx context.Context, gone map[manifest.ID]bool) (before *v1alpha1.ConfigSync, err error) {
	syncs := kube.ConfigSyncs(r.clients.Dynamic, r.cs.Namespace)
	now, ours := r.intent, r.intent != nil
	if r.intent = nil; now == nil {
		now, err = syncs.Get(ctx, r.cs.Name)
	}
	switch {
	case err != nil:
		return nil, err
	case now.UID != r.cs.UID:
		return nil, ErrConcurrentChange
	}
	if err := r.mergeInventory(now.Status.Inventory, gone); err != nil {
		return nil, err
	}
	if !ours && !equality.Semantic.DeepEqual(now.Status, r.cs.Status) {
		r.overtake(&now.Status)
	}
	if r.overtaken {
		inventory := r.cs.Status.Inventory
		now.Status.DeepCopyInto(&r.cs.Status)
		r.cs.Status.Inventory = inventory
	} else {
		r.mergeConditions(now.Status.Conditions)
	}
	if equality.Semantic.DeepEqual(now.Status, r.cs.Status) {
		return nil, nil
	}
	before = now.DeepCopy()
	now.Status = r.cs.Status
	if _, err = syncs.Update(ctx, now, metav1.UpdateOptions{}, "status"); err != nil {
		return nil, err
	}
	return before, nil
}

// mergeConditions takes the conditions of other writers from the status as it is now.
func (r *record) mergeConditions(now []metav1.Condition) {
	merged := slices.DeleteFunc(slices.Clone(r.cs.Status.Conditions), isForeign)
	for _, c := range now {
		if isForeign(c) {
			merged = append(merged, c)
		}
	}
	r.cs.Status.Conditions = status.FitConditions(merged, conditions)
}

// mergeInventory adds the lines that other runs wrote since the inventory was read, so that it has every object that they applied. If both
// together have too many, it fails: without a line, an object would stay in the cluster forever.
func (r *record) mergeInventory(now []string, gone map[manifest.ID]bool) error {
	if slices.Equal(now, r.last.Inventory) {
		return nil
	}
	ours := map[manifest.ID]bool{}
	for _, line := range r.cs.Status.Inventory {
		if e, ok := manifest.ParseEntry(line); ok {
			ours[e.ID] = true
		}
	}
	merged := slices.Clone(r.cs.Status.Inventory)
	for _, line := range now {
		if e, ok := manifest.ParseEntry(line); ok && !ours[e.ID] && !gone[e.ID] {
			merged = append(merged, line)
		}
	}
	if len(merged) > maxInventory {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the ConfigSync would own %d objects, with those of another run; at most %d are allowed: prune some, or split it",
			len(merged), maxInventory)
	}
	slices.Sort(merged)
	r.cs.Status.Inventory = merged
	return nil
}

// event is an Event about the ConfigSync.
type event struct{ kind, reason, note string }

// send sends Events. They are best effort: the caller may lack the right to create them.
func (r *record) send(ctx context.Context, events ...event) {
	for _, e := range events {
		_, _ = r.clients.Core.EventsV1().Events(r.cs.Namespace).Create(ctx, &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: r.cs.Name + "-", Namespace: r.cs.Namespace},
			EventTime:  metav1.NewMicroTime(r.clients.Now()), ReportingController: "stoker.io/config", ReportingInstance: "stoker-config",
			Action: "Sync", Reason: e.reason, Type: e.kind, Note: failure.Cut(e.note, 1024), // the API's bound
			Regarding: corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindConfigSync, Namespace: r.cs.Namespace, Name: r.cs.Name, UID: r.cs.UID,
			},
		}, metav1.CreateOptions{})
	}
}
