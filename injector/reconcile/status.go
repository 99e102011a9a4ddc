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
	add := func(list []*corev1.Pod, ending bool) {
		for _, p := range list {
			l.Pods = append(l.Pods, status.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Agent: inject.Has(p), Ended: ending, Ending: ending,
				Stuck: cmp.Or(pods.whyNoAgent[p.UID], p.Status.Message)})
		}
	}
	add(pods.live, false)
	add(pods.ending, true)
	slices.SortFunc(l.Pods, func(a, b status.Pod) int { return strings.Compare(a.Name, b.Name) })
	return status.WithoutLead(l)
}
