package upkeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
)

// maxNamed bounds the pods in a message.
const maxNamed = 5

// summarise writes the status of a GatewaySync without a live lead. The status has one writer at a time: the lead or, if there
// is none, upkeep. The resourceVersion prevents upkeep from overwriting a lead that starts at this moment.
func (u *Upkeep) summarise(ctx context.Context, n *namespace, gs *v1alpha1.GatewaySync, there podsThere, now time.Time) error {
	l := n.locks[gs.Name]
	defer func() { n.locks[gs.Name] = l }()
	if gs.DeletionTimestamp != nil || now.Before(l.next) {
		return nil
	}
	target, err := kube.SyncTargets(u.Dynamic, gs.Namespace).Get(ctx, gs.Name)
	switch undecodable := (*kube.UndecodableError)(nil); {
	case apierrors.IsNotFound(err):
		target = nil
	case errors.As(err, &undecodable):
		target = undecodable.Target()
	case err != nil:
		return fmt.Errorf("SyncTarget %s/%s: %w", gs.Namespace, gs.Name, err)
	}
	if !l.free(target, now) {
		return nil
	}
	status := leaderless(gs, there, u.Now())
	if equality.Semantic.DeepEqual(status, &gs.Status) {
		return nil
	}
	change, err := kube.StatusDifference(&gs.Status, status)
	if err != nil {
		return err
	}
	patch, err := kube.StatusPatch(gs, change)
	if err != nil {
		return err
	}
	_, err = kube.GatewaySyncs(u.Dynamic, gs.Namespace).Patch(ctx, gs.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // it was written since; the informer will report it
	case err != nil:
		return fmt.Errorf("status of GatewaySync %s/%s: %w", gs.Namespace, gs.Name, err)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	u.Log.Info("a GatewaySync has no lead", "namespace", gs.Namespace, "gatewaysync", gs.Name, "reason", ready.Reason, "message", ready.Message)
	return nil
}

// leaderless returns the status of a GatewaySync without agents. Without gateways there is nothing to wait for. Otherwise it
// waits for their agents up to spec.progressDeadline. The request counts as handled once the wait is over.
func leaderless(gs *v1alpha1.GatewaySync, there podsThere, now time.Time) *v1alpha1.GatewaySyncStatus {
	s := gs.Status.DeepCopy()
	asked := gs.AskedAt()
	absence := v1alpha1.Absent(gs, asked, now)
	s.ObservedGeneration, s.ProfileCount = gs.Generation, int32(len(gs.Spec.Sync.Profiles))
	gone := absence.Gone(len(s.DiscoveredGateways), there.count())
	since, late := absence.Begun(unmoved(gs))
	if asked != "" && (gone || late) {
		s.LastHandledRequest = asked
	}
	w := writer{gs, s, now}
	w.sidecars(there)
	switch {
	case gone:
		s.DiscoveredGateways = nil
		w.unset(v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled)
		w.unknown(v1alpha1.ReasonNoGateways, v1alpha1.NoGateways(gs.Name))
	case late:
		w.unset(v1alpha1.ConditionReconciling)
		limit := absence.Until.Sub(absence.Since)
		message := fmt.Sprintf("no agent has led for %s; %s", limit, there)
		if !absence.Over {
			message = fmt.Sprintf("not done within %s, and no agent leads; %s", limit, there)
		}
		w.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded, message)
		w.unknown(v1alpha1.ReasonProgressDeadlineExceeded, message)
	default:
		w.unset(v1alpha1.ConditionStalled)
		message := "no agent leads; " + there.String()
		w.set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonAgentsAway, message)
		meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = metav1.NewTime(since)
		w.unknown(v1alpha1.ReasonAgentsAway, message)
	}
	// Keep what the last lead knew of the gateways, except for their sync status, which is unknown for the current spec.
	for i := range s.DiscoveredGateways {
		row := &s.DiscoveredGateways[i]
		row.SyncStatus, row.Reason, row.Message = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway, "no agent leads"
	}
	total := len(s.DiscoveredGateways)
	if _, all, _ := strings.Cut(gs.Status.GatewaysReady, "/"); total > 0 { // a very large fleet has more gateways than rows
		if n, err := strconv.Atoi(all); err == nil {
			total = max(total, n)
		}
	}
	s.GatewaysReady = fmt.Sprintf("0/%d", total)
	return s
}

// unmoved reports whether the desired ref is still that of the status. If it is invalid, it counts as unmoved.
func unmoved(gs *v1alpha1.GatewaySync) bool {
	d, err := v1alpha1.DesiredRef(gs, "")
	return err != nil || gs.Status.Target != nil && gs.Status.Target.Ref == d.Ref
}

// truncated returns a time with the resolution of the API server.
func truncated(t time.Time) time.Time { return t.Truncate(time.Second) }

// podsThere are the pods that ask for an agent or have one, live and terminating.
type podsThere struct {
	live, ending []*corev1.Pod
	// awaited is why an evicted pod has no successor; empty if none is missing.
	awaited string
}

// count returns the number of pods, including an evicted one without successor.
func (t podsThere) count() int {
	n := len(t.live) + len(t.ending)
	if t.awaited != "" {
		n++
	}
	return n
}

// of returns those that are gateways of gs.
func (t podsThere) of(gs *v1alpha1.GatewaySync, all []*v1alpha1.GatewaySync) podsThere {
	mine := func(pods []*corev1.Pod) (out []*corev1.Pod) {
		for _, p := range pods {
			if belongs(p, gs, all) {
				out = append(out, p)
			}
		}
		return out
	}
	return podsThere{live: mine(t.live), ending: mine(t.ending)}
}

func (t podsThere) String() string {
	switch {
	case len(t.live) > 0:
		return "pods: " + list(t.live)
	case len(t.ending) > 0:
		return "pods that end: " + list(t.ending)
	case t.awaited != "":
		return t.awaited
	}
	return "the gateways that were there are gone"
}

func list(pods []*corev1.Pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		name := p.Name
		if why := p.Status.Message; why != "" {
			name += " (" + why + ")"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// writer sets the conditions of a status.
type writer struct {
	gs  *v1alpha1.GatewaySync
	s   *v1alpha1.GatewaySyncStatus
	now time.Time
}

func (w writer) set(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	meta.SetStatusCondition(&w.s.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: string(reason), Message: message, ObservedGeneration: w.gs.Generation,
		LastTransitionTime: metav1.NewTime(truncated(w.now)),
	})
}

func (w writer) unset(kinds ...string) {
	for _, k := range kinds {
		meta.RemoveStatusCondition(&w.s.Conditions, k)
	}
}

// unknown sets the conditions for gateways whose state is unknown.
func (w writer) unknown(reason v1alpha1.Reason, message string) {
	w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionUnknown, reason, message)
	w.set(v1alpha1.ConditionReady, metav1.ConditionUnknown, reason, message)
}

// sidecars sets SidecarInjected by the same rule as the lead, and also accounts for a pod that upkeep evicted.
func (w writer) sidecars(there podsThere) {
	without := slices.DeleteFunc(slices.Clone(there.live), inject.Has)
	var problems []string
	if len(without) > 0 {
		problems = append(problems, fmt.Sprintf("without an agent: %s. Events of the pod say why it was not injected; a pod that is started again is asked for anew", list(without)))
	}
	if there.awaited != "" {
		problems = append(problems, there.awaited)
	}
	if len(problems) == 0 {
		w.set(v1alpha1.ConditionSidecarInjected, metav1.ConditionTrue, v1alpha1.ReasonSidecarInjected, "every pod that asks for an agent has one")
		return
	}
	w.set(v1alpha1.ConditionSidecarInjected, metav1.ConditionFalse, v1alpha1.ReasonMissingSidecar, strings.Join(problems, "; "))
}
