package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// maxKeyRestartAge is the age up to which a pod may be evicted so that its gateway accepts the agent's API key. It is longer than
// maxEvictionAge, because the gateways of a new fleet start one after the other, and such a gateway is new. keyRestartPause is how long no pod of
// the same name or volume is evicted again for this purpose.
const (
	maxKeyRestartAge = time.Hour
	keyRestartPause  = 24 * time.Hour
)

// minPodAge is how old the youngest pod of an owner must be before one of its pods is evicted. The successor is recognized because it
// is created later than all of them, and creation times have a resolution of one second.
const minPodAge = 2 * time.Second

// Why a pod that would be injected today has no agent, and why it is not evicted.
const (
	createdTooEarly = "the pod was created before its GatewaySync, or while no injector was available"
	foreign         = "the container " + inject.Container + " of the pod is another program, because it has no variable POD_UID (docs/how-to/migration.md)"
	tooOldToEvict   = ", and the pod is too old to be evicted"
)

// purpose is why a pod is evicted.
type purpose struct {
	cause  string        // why the pod has to be replaced
	gain   string        // what its successor does
	maxAge time.Duration // of a pod that may be evicted
	reason v1alpha1.Reason
}

// toInject is the purpose of evicting a pod without an agent.
func toInject(cause string) purpose {
	return purpose{cause, "gets an agent", maxEvictionAge, v1alpha1.ReasonMissingSidecar}
}

// toAccept is the purpose of evicting a pod whose gateway has to start once more.
func toAccept() purpose {
	return purpose{"its gateway has to start once more to accept the agent's API key", "accepts it", maxKeyRestartAge, v1alpha1.ReasonGatewayForbidden}
}

// verdict is why a pod has no agent. It is valid as long as neither the pod nor the GatewaySync changes.
type verdict struct {
	reason     v1alpha1.Reason // empty: the pod would be injected today
	message    string
	cause      string // why the pod has no agent although it would be injected today
	pod        string // its resourceVersion
	gs         types.UID
	generation int64
	evicted    bool // by this call of repair
}

// repairPods handles the pods that ask for an agent and have none: it evicts them, or records why not. It also calls repairKey for each pod
// with an agent. If soon is true, the caller calls it again in a moment.
func (u *Reconciler) repairPods(ctx context.Context, n *namespace, all inject.Candidates, pods podIndex, replacements map[string]replacement, now time.Time) (soon bool, err error) {
	without := map[v1alpha1.Reason]int{}
	n.whyNoAgent = map[types.UID]string{}
	for _, t := range replacements {
		if t.stuck && t.absent {
			without[v1alpha1.ReasonMissingSidecar]++ // the injector evicted a pod that was not recreated
		}
	}
	var errs []error
	for _, p := range pods.live {
		if inject.Has(p) {
			later, err := u.repairKey(ctx, n, all, p, pods, replacements)
			soon = soon || later
			errs = append(errs, err)
			continue
		}
		if !requestsAgent(p) {
			continue
		}
		d, gs, err := u.decide(ctx, n, all, p, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if d.reason == "" {
			var later bool
			d, later, err = u.repair(ctx, gs, p, toInject(d.cause), pods, replacements)
			soon = soon || later
			errs = append(errs, err)
		}
		if d.reason == "" {
			continue // it is being or will be evicted
		}
		without[d.reason]++
		n.whyNoAgent[p.UID] = fmt.Sprintf("%s: %s", d.reason, d.message)
		errs = append(errs, u.podEvent(ctx, p, gs, corev1.EventTypeWarning, v1alpha1.EventNotInjected, "Inject", n.whyNoAgent[p.UID]))
	}
	u.mu.Lock()
	n.podsWithoutAgent = without
	u.mu.Unlock()
	return soon, errors.Join(errs...)
}

// decide returns what admission would decide for a pod today. It reads the whole pod only if necessary, and once for each version of the pod
// and its GatewaySync. The returned GatewaySync is nil if the pod has none, or is gone.
func (u *Reconciler) decide(ctx context.Context, n *namespace, all inject.Candidates, p *corev1.Pod, now time.Time) (verdict, *v1alpha1.GatewaySync, error) {
	out, err := u.excluded(ctx, n, now)
	if err != nil {
		return verdict{}, nil, err
	}
	if out != "" {
		return verdict{reason: v1alpha1.ReasonNamespaceExcluded, message: out}, nil, nil
	}
	gs, decision := inject.Choose(p, all)
	if gs == nil {
		return verdict{reason: decision.Reason, message: decision.Message}, nil, nil
	}
	if d, ok := n.decided[p.UID]; ok && d.pod == p.ResourceVersion && d.gs == gs.UID && d.generation == gs.Generation {
		return d, gs, nil
	}
	whole, err := u.Core.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || whole.UID != p.UID {
		return verdict{}, nil, ignoreNotFound(err) // the informer will report it
	}
	cause := createdTooEarly
	if inject.Foreign(whole) {
		cause, whole = foreign, inject.WithoutForeign(whole)
	}
	_, decision = inject.Patch(whole, gs, u.Defaults)
	d := verdict{reason: decision.Reason, message: decision.Message, cause: cause, pod: p.ResourceVersion, gs: gs.UID, generation: gs.Generation}
	n.decided[p.UID] = d
	return d, gs, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// repairKey evicts a pod whose gateway has to start once more to accept the API key that its agent makes. A pod is evicted only if its
// GatewaySync asks for such a key, and if its volume outlives it: otherwise the gateway of the successor would have to start again, too. The
// agent asks once for each volume. In addition, repairKey evicts at most one pod a day with the same name or volume.
func (u *Reconciler) repairKey(ctx context.Context, n *namespace, all inject.Candidates, p *corev1.Pod, pods podIndex, replacements map[string]replacement) (soon bool, err error) {
	i := slices.IndexFunc(all.Readable, func(gs *v1alpha1.GatewaySync) bool { return belongs(p, gs, all) })
	now := u.Now()
	if !needsGatewayRestart(p) || i < 0 || !all.Readable[i].Spec.Gateway.ManagedKey() || n.recentlyRestarted(p.Name, now) {
		return false, nil
	}
	gs := all.Readable[i]
	refuse := func(message string) error {
		return u.podEvent(ctx, p, gs, corev1.EventTypeWarning, v1alpha1.EventRepairStopped, "Evict", message)
	}
	if now.Sub(p.CreationTimestamp.Time) >= maxKeyRestartAge {
		return false, refuse(toAccept().cause + tooOldToEvict + ": restart the gateway when convenient")
	}
	whole, err := u.Core.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || whole.UID != p.UID {
		return false, ignoreNotFound(err)
	}
	volume, keeps := inject.DataVolume(whole)
	switch {
	case !keeps:
		return false, refuse(toAccept().cause + ", and the injector does not evict it, because its data volume ends with it: use a volume that stays, or name a key of your own in spec.gateway.api.secretName")
	case n.recentlyRestarted(volume, now):
		return false, refuse(toAccept().cause + ", and the injector has evicted a pod with this volume before: name a key of your own in spec.gateway.api.secretName")
	}
	d, soon, err := u.repair(ctx, gs, p, toAccept(), pods, replacements)
	if d.evicted { // a failed eviction must be retried
		n.restarted[p.Name], n.restarted[volume] = now, now
	}
	if d.reason != "" {
		err = errors.Join(err, refuse(d.message))
	}
	return soon, err
}

// repair evicts a young pod for a purpose, so that its owner creates it again. The returned reason is empty if it was or will be evicted.
func (u *Reconciler) repair(ctx context.Context, gs *v1alpha1.GatewaySync, p *corev1.Pod, why purpose, pods podIndex, replacements map[string]replacement) (d verdict, soon bool, err error) {
	if gs == nil {
		return verdict{}, false, nil // the pod is gone
	}
	owner, now, cause := metav1.GetControllerOfNoCopy(p), u.Now(), why.cause
	notEvicted := func(text string) verdict { return verdict{reason: why.reason, message: text} }
	deleteByHand := func(text string) verdict {
		return notEvicted(text + "; delete the pod when convenient, and its successor " + why.gain)
	}
	switch t := replacements[gs.Name]; {
	case owner == nil:
		return deleteByHand(cause + ", and it has no owner that would recreate it"), false, nil
	case !recreatesPods(owner):
		return notEvicted(cause + ". The injector does not evict it, because " + owner.Kind + " " + owner.Name +
			" may not recreate it; a new pod " + why.gain), false, nil
	case u.Repair != RepairEvict:
		return deleteByHand(cause), false, nil
	case now.Sub(p.CreationTimestamp.Time) >= why.maxAge:
		return deleteByHand(cause + tooOldToEvict), false, nil
	case t.stuck:
		return notEvicted("the injector does not evict it yet: " + t.wait), false, nil
	case t.wait != "":
		return verdict{}, false, nil // another pod of the GatewaySync is away or starting; evict this one later
	}
	newest := pods.newest(owner.UID, deployment(p))
	if now.Sub(newest.Time) < minPodAge || !u.WebhookReady() || !u.limiter.TryAccept() {
		return verdict{}, true, nil
	}
	// Each eviction is recorded before it is made. A dry run first avoids a record for each retry of a blocked eviction.
	outcome, err := u.evict(ctx, p, true)
	if now = u.Now(); now.Sub(p.CreationTimestamp.Time) >= why.maxAge {
		return deleteByHand(cause + tooOldToEvict), false, err // Now follows the API server's responses, and the dry run may have corrected it
	}
	if outcome == evictionDone {
		e := eviction{Namespace: gs.Namespace, GatewaySync: gs.Name, Pod: p.Name, UID: p.UID, Owner: owner.UID, By: owner.Kind + " " + owner.Name, Deployment: deployment(p), Newest: newest, At: metav1.NewTime(now)}
		if err := u.evictions.put(ctx, gs.UID, e); err != nil {
			return verdict{}, errors.Is(err, errFull), ignoreFull(err)
		}
		replacements[gs.Name] = replacement{wait: "pod " + p.Name + " is being evicted"}
		if outcome, err = u.evict(ctx, p, false); outcome != evictionDone && err == nil {
			delete(replacements, gs.Name)
			err = u.evictions.drop(ctx, gs.UID)
		}
	}
	switch outcome {
	case evictionBlocked:
		return notEvicted("a PodDisruptionBudget blocks the eviction of the pod; " +
			"the injector retries until the pod is " + why.maxAge.String() + " old. Delete the pod when convenient, and its successor " + why.gain), false, err
	case evictionMissed:
		return verdict{}, false, err
	}
	u.Log.Info("pod evicted", "namespace", p.Namespace, "pod", p.Name, "gatewaysync", gs.Name, "because", cause)
	if cause == createdTooEarly {
		cause = "it was created before its GatewaySync " + gs.Name + ", or while no injector was available"
	}
	note := "evicted, because " + cause + "; its successor " + why.gain
	return verdict{evicted: true}, false, errors.Join(
		u.podEvent(ctx, p, gs, corev1.EventTypeNormal, v1alpha1.EventPodEvictedForRepair, "Evict", note),
		u.syncEvent(ctx, gs, p.UID, p.Name, corev1.EventTypeNormal, v1alpha1.EventPodEvictedForRepair, "Evict", "pod "+p.Name+" was "+note))
}

func ignoreFull(err error) error {
	if errors.Is(err, errFull) {
		return nil
	}
	return err
}

// recreatesPods reports whether an owner replaces any pod that ends. A Job does not: an eviction counts as a failure and may use
// up its last retry.
func recreatesPods(owner *metav1.OwnerReference) bool {
	switch group, err := schema.ParseGroupVersion(owner.APIVersion); {
	case err != nil:
		return false
	case group.Group == appsv1.GroupName:
		return owner.Kind == "StatefulSet" || owner.Kind == "ReplicaSet" || owner.Kind == "DaemonSet"
	default:
		return group.Group == corev1.GroupName && owner.Kind == "ReplicationController"
	}
}

// newest returns when the youngest pod of an owner, or of its Deployment, was created.
func (t podIndex) newest(owner types.UID, of string) (at metav1.Time) {
	for _, p := range slices.Concat(t.live, t.ending) {
		c := metav1.GetControllerOfNoCopy(p)
		if c != nil && (c.UID == owner || of != "" && deployment(p) == of) && p.CreationTimestamp.After(at.Time) {
			at = p.CreationTimestamp
		}
	}
	return at
}

// result is the outcome of an eviction.
type result int

const (
	evictionDone    result = iota
	evictionBlocked        // a disruption budget forbids it
	evictionMissed         // it failed, or the pod was replaced
)

// evict evicts a pod. If dry is true, it only checks whether it may.
func (u *Reconciler) evict(ctx context.Context, p *corev1.Pod, dry bool) (result, error) {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	err := u.Core.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, DeleteOptions: options,
	})
	switch {
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause): // status 429 alone may mean a busy API server
		u.Metrics.Eviction("blocked")
		return evictionBlocked, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return evictionMissed, nil
	case err != nil:
		u.Metrics.Eviction("failed")
		return evictionMissed, fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
	case !dry:
		u.Metrics.Eviction("evicted")
	}
	return evictionDone, nil
}
