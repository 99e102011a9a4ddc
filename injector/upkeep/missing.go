package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// evictionMemory is how long it is remembered whose pods were evicted.
const evictionMemory = time.Hour

// evictions are those of one owner's pods. Where the API server does not reach the injector, successors would never have an
// agent either: no name is evicted twice, and no more pods than the owner has had at a time.
type evictions struct {
	last  time.Time
	names map[string]bool
	most  int // pods that were there at a time
}

func (e *evictions) spent(name string) bool {
	return e != nil && (e.names[name] || len(e.names) >= e.most)
}

// decided is why a pod without an agent has none, as long as its GatewaySync stays as it is.
type decided struct {
	reason     v1alpha1.Reason // empty: it would be injected today
	message    string
	gs         string
	generation int64
}

// missing deals with the pods that ask for an agent and have none. soon asks to look again in a moment.
func (u *Upkeep) missing(ctx context.Context, n *namespace, all []*v1alpha1.GatewaySync, pods []*corev1.Pod, now time.Time) (soon bool, err error) {
	without := map[v1alpha1.Reason]int{}
	owned := map[types.UID]int{}
	for _, p := range pods {
		if c := metav1.GetControllerOfNoCopy(p); c != nil {
			owned[c.UID]++
			if e := n.evicted[c.UID]; e != nil {
				e.most = max(e.most, owned[c.UID])
			}
		}
	}
	var errs []error
	for _, p := range pods {
		if !asks(p) || inject.Has(p) {
			continue
		}
		d, gs, err := u.why(ctx, n, all, p, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if d.reason == "" {
			var later bool
			d, later, err = u.repair(ctx, n, gs, p, owned, now)
			soon = soon || later
			errs = append(errs, err)
		}
		if d.reason == "" {
			continue // it goes, or will
		}
		without[d.reason]++
		errs = append(errs, u.tell(ctx, p, gs, corev1.EventTypeWarning, v1alpha1.EventNotInjected, "Inject", string(d.reason),
			fmt.Sprintf("%s: %s", d.reason, d.message)))
	}
	u.mu.Lock()
	n.without = without
	u.mu.Unlock()
	return soon, errors.Join(errs...)
}

// why finds out what admission would answer for a pod today. The whole pod is read only where that depends on it, and once.
func (u *Upkeep) why(ctx context.Context, n *namespace, all []*v1alpha1.GatewaySync, p *corev1.Pod, now time.Time) (decided, *v1alpha1.GatewaySync, error) {
	out, err := u.ruledOut(ctx, n, now)
	if err != nil {
		return decided{}, nil, err
	}
	if out != "" {
		return decided{reason: v1alpha1.ReasonNamespaceExcluded, message: out}, nil, nil
	}
	gs, decision := inject.Choose(p, all)
	if gs == nil {
		return decided{reason: decision.Reason, message: decision.Message}, nil, nil
	}
	if d, ok := n.decided[p.UID]; ok && d.gs == gs.Name && d.generation == gs.Generation {
		return d, gs, nil
	}
	whole, err := u.Core.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || whole.UID != p.UID {
		return decided{}, nil, ignoreGone(err) // the informer will say so
	}
	_, decision = inject.Patch(whole, gs, u.Defaults)
	d := decided{reason: decision.Reason, message: decision.Message, gs: gs.Name, generation: gs.Generation}
	n.decided[p.UID] = d
	return d, gs, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// repair evicts a young pod that would be injected today, so that whoever made it makes it again. The reason is empty where
// it did, or will.
func (u *Upkeep) repair(ctx context.Context, n *namespace, gs *v1alpha1.GatewaySync, p *corev1.Pod, owned map[types.UID]int, now time.Time) (d decided, soon bool, err error) {
	if gs == nil {
		return decided{}, false, nil // the pod is gone
	}
	owner := metav1.GetControllerOfNoCopy(p)
	restart := func(why string) decided {
		return decided{reason: v1alpha1.ReasonMissingSidecar, message: why + "; it gets an agent when it is started again: delete it when that is convenient"}
	}
	age := now.Sub(p.CreationTimestamp.Time)
	switch {
	case owner == nil:
		return restart("the pod was created before its GatewaySync, or while no injector answered, and nobody would create it again if it were evicted"), false, nil
	case u.Repair != RepairEvict:
		return restart("the pod was created before its GatewaySync, or while no injector answered"), false, nil
	case age >= young:
		return restart("the pod was created before its GatewaySync, or while no injector answered, and is too old to be started again unasked"), false, nil
	}
	if n.evicted[owner.UID].spent(p.Name) {
		return decided{reason: v1alpha1.ReasonMissingSidecar,
			message: "a pod of the same owner was evicted for this, and its successor has no agent either: can the API server reach the injector?"}, false, nil
	}
	if !u.Answering() || !u.limiter.TryAccept() {
		return decided{}, true, nil
	}
	if done, err := u.evict(ctx, gs, p); !done {
		return decided{}, false, err
	}
	e := n.evicted[owner.UID]
	if e == nil {
		e = &evictions{names: map[string]bool{}, most: owned[owner.UID]}
		n.evicted[owner.UID] = e
	}
	e.last, e.names[p.Name] = now, true
	note := "evicted, because it was created before its GatewaySync " + gs.Name + ", or while no injector answered; its successor gets an agent"
	return decided{}, false, errors.Join(
		u.tell(ctx, p, gs, corev1.EventTypeNormal, v1alpha1.EventPodEvictedForRepair, "Evict", "", note),
		u.tellSync(ctx, gs, p, v1alpha1.EventPodEvictedForRepair, "Evict", "pod "+p.Name+" was "+note))
}

// evict is not done where a disruption budget is against it, or the pod is another one by now.
func (u *Upkeep) evict(ctx context.Context, gs *v1alpha1.GatewaySync, p *corev1.Pod) (done bool, err error) {
	err = u.Core.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	})
	switch {
	case apierrors.IsTooManyRequests(err):
		u.Metrics.Eviction("blocked")
		return false, nil // perhaps the next time
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		u.Metrics.Eviction("failed")
		return false, fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	u.Metrics.Eviction("evicted")
	u.Log.Info("a pod that started without its agent was evicted", "namespace", p.Namespace, "pod", p.Name, "gatewaysync", gs.Name)
	return true, nil
}
