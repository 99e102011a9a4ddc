package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	"stoker.io/stoker/internal/status"
)

// writeStatus writes the status of a GatewaySync without a live lead. The status has one writer at a time: the lead or, if there
// is none, the reconciler. The resourceVersion prevents the reconciler from overwriting a lead that starts at this moment.
func (u *Reconciler) writeStatus(ctx context.Context, n *namespace, gs *v1alpha1.GatewaySync, pods podIndex, now time.Time) error {
	lock := n.locks[gs.UID]
	defer func() { n.locks[gs.UID] = lock }()
	if gs.DeletionTimestamp != nil || now.Before(lock.nextRead) {
		return nil
	}
	target, err := kube.SyncTargets(u.Dynamic, gs.Namespace).Get(ctx, gs.Name)
	undecodable, ok := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
		target = nil
	case ok:
		target = undecodable.Target()
	case err != nil:
		return fmt.Errorf("SyncTarget %s/%s: %w", gs.Namespace, gs.Name, err)
	}
	if !lock.free(target, now) {
		lock.leadMissing = false
		return nil
	}
	next := leaderless(gs, pods, u.Now())
	ready := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady)
	lock.leadMissing = ready.Reason != string(v1alpha1.ReasonNoGateways)
	if equality.Semantic.DeepEqual(next, &gs.Status) {
		return nil
	}
	change, err := kube.StatusDifference(&gs.Status, next)
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
	u.Log.Info("status of GatewaySync without lead", "namespace", gs.Namespace, "gatewaysync", gs.Name, "reason", ready.Reason, "message", ready.Message)
	return nil
}

// leaderless returns the status of a GatewaySync without a lead.
func leaderless(gs *v1alpha1.GatewaySync, pods podIndex, now time.Time) *v1alpha1.GatewaySyncStatus {
	l := status.Leaderless{GatewaySync: gs, Awaited: pods.missingSuccessor, Unclaimed: pods.unclaimed, Now: now}
	add := func(live []*corev1.Pod, ending bool) {
		for _, p := range live {
			l.Pods = append(l.Pods, status.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Agent: inject.Has(p), Ended: ending, Ending: ending,
				Stuck: cmp.Or(pods.without[p.UID], p.Status.Message)})
		}
	}
	add(pods.live, false)
	add(pods.ending, true)
	slices.SortFunc(l.Pods, func(a, b status.Pod) int { return strings.Compare(a.Name, b.Name) })
	return status.Without(l)
}

// maxUnclaimed bounds the names in a message.
const maxUnclaimed = 5

// podIndex are the pods that ask for an agent or have one, live and terminating.
type podIndex struct {
	live, ending []*corev1.Pod
	// missingSuccessor is why an evicted pod has no successor; empty if none is missing.
	missingSuccessor string
	// without is why pods have no agent, and unclaimed why pods that name no GatewaySync belong to none; empty if there are none.
	without   map[types.UID]string
	unclaimed string
}

// of returns those that are gateways of gs, and why pods belong to no GatewaySync.
func (t podIndex) of(gs *v1alpha1.GatewaySync, all inject.Candidates) podIndex {
	mine := func(pods []*corev1.Pod) (out []*corev1.Pod) {
		for _, p := range pods {
			if belongs(p, gs, all) {
				out = append(out, p)
			}
		}
		return out
	}
	return podIndex{live: mine(t.live), ending: mine(t.ending), unclaimed: t.ambiguous(all)}
}

// ambiguous returns why pods that name no GatewaySync belong to none of several, or "".
func (t podIndex) ambiguous(all inject.Candidates) string {
	var names []string
	why := ""
	for _, p := range t.live {
		if p.Labels[v1alpha1.LabelCRName] != "" || inject.Has(p) {
			continue
		}
		if _, decision := inject.Choose(p, all); decision.Reason == v1alpha1.ReasonGatewaySyncAmbiguous {
			names, why = append(names, p.Name), decision.Message
		}
	}
	if why == "" {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("no agent in pods %s: %s", strings.Join(names[:min(len(names), maxUnclaimed)], ", "), why)
}
