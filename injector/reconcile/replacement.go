package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

const (
	// successorTimeout is how long an owner may take to replace a pod. startTimeout is how long an agent may take to start,
	// which includes pulling its image and, with startup "wait", the first sync.
	successorTimeout, startTimeout = time.Minute, 5 * time.Minute
	// evictionLostAfter is when a recorded eviction counts as not carried out if the pod still exists.
	evictionLostAfter = 30 * time.Second
	// kindStatefulSet is the kind of owner that keeps the names of its pods.
	kindStatefulSet = "StatefulSet"
	// kindReplicaSet is the kind of owner that a Deployment replaces with every change of its template.
	kindReplicaSet = "ReplicaSet"
)

// replacement says whether a pod of a GatewaySync may be evicted now. Only one of its pods may be missing at a time, across all
// owners, because the two gateways of a redundant pair are two StatefulSets. The next eviction waits until the successor has started,
// because the namespace may reject the agent's container, or the node its image.
type replacement struct {
	wait string // what to wait for, or ""
	// stuck means that waiting alone does not help, absent that an evicted pod has no successor, recreated that it has one.
	stuck, absent, recreated bool
	repairStopped            bool // stuck after an eviction; an Event reports it
}

// replacements returns the replacement of each GatewaySync, and sends an Event for those that are stuck after an eviction.
func (u *Reconciler) replacements(ctx context.Context, n *namespace, all inject.Candidates, pods podIndex) (map[string]replacement, error) {
	replacements := map[string]replacement{}
	var errs []error
	for _, gs := range all.Readable {
		mine := pods.of(gs, all)
		e, ok := u.evictions.of(gs.UID)
		if ok {
			now := u.Now()
			t, over := e.replacement(mine, n.endTime(e, now), u.nameInUse(gs.Namespace, e), now)
			if !over {
				n.recordTimes(e, mine, t, now)
				replacements[gs.Name] = t
				if t.recreated && !e.Recreated {
					e.Recreated = true
					errs = append(errs, u.evictions.put(ctx, gs.UID, e))
				}
				if t.stuck {
					t.repairStopped = true
					replacements[gs.Name] = t
					errs = append(errs, u.syncEvent(ctx, gs, e.UID, e.Pod, corev1.EventTypeWarning, v1alpha1.EventRepairStopped, "Evict", t.wait+". No other pod of this GatewaySync is evicted until this is resolved"))
				}
				continue
			}
			delete(n.endTimes, e.UID)
			if err := u.evictions.drop(ctx, gs.UID); err != nil {
				replacements[gs.Name] = replacement{wait: "pod " + e.Pod + " was replaced; the injector has not recorded that yet"}
				errs = append(errs, err)
				continue
			}
		}
		replacements[gs.Name] = otherReplacement(mine, u.Now())
	}
	return replacements, errors.Join(errs...)
}

// replacement returns the progress of the successor of an evicted pod; over means that there is nothing more to wait for. ends is when
// the pod should have ended or its successor was last seen, or zero. exists reports whether another live pod has the pod's name.
func (e eviction) replacement(pods podIndex, ends time.Time, exists bool, now time.Time) (t replacement, over bool) {
	for _, p := range pods.live {
		if p.UID == e.UID {
			return replacement{wait: "pod " + e.Pod + " is being evicted"}, now.Sub(e.At.Time) > evictionLostAfter
		}
	}
	for _, p := range pods.ending {
		if p.UID == e.UID {
			return terminating(p, now), false
		}
	}
	var withoutAgent, notStarted *corev1.Pod
	for _, p := range pods.live {
		switch {
		case !e.isSuccessor(p):
		case !inject.Has(p):
			withoutAgent = p
		case started(p):
			return replacement{}, true
		default:
			notStarted = p
		}
	}
	if ends.Before(e.At.Time) {
		ends = e.At.Time
	}
	switch {
	case notStarted != nil:
		t := starting(notStarted, now)
		t.recreated = true
		return t, false
	case withoutAgent != nil:
		return replacement{recreated: true, stuck: true, wait: "pod " + e.Pod + " was evicted, but its successor " + withoutAgent.Name + " has no agent either: check that the API server can reach the injector"}, false
	case exists:
		return replacement{}, true // the successor does not ask for an agent
	}
	if e.Recreated && now.Sub(ends) > successorTimeout {
		return replacement{}, true // the owner replaced the pod before, so it was scaled down or deleted since
	}
	t = replacement{absent: true, stuck: now.Sub(ends) > successorTimeout, wait: "pod " + e.Pod + " was evicted to get an agent, and " + e.By + " has not recreated it"}
	if t.stuck {
		kind, name, _ := strings.Cut(e.By, " ")
		t.wait += fmt.Sprintf(": it was scaled down or deleted, or a LimitRange, a quota or a policy of the namespace rejects the agent's container. See the Events of the %s (kubectl --namespace %s describe %s %s)",
			kind, e.Namespace, strings.ToLower(kind), name)
	}
	return t, false
}

// isSuccessor reports whether p replaces the evicted pod: it has the same name, or is a younger pod of the same owner or of
// another ReplicaSet of the same Deployment.
func (e eviction) isSuccessor(p *corev1.Pod) bool {
	c := metav1.GetControllerOfNoCopy(p)
	switch {
	case p.Name == e.Pod:
		return true
	case c == nil, c.Kind == kindStatefulSet, !p.CreationTimestamp.After(e.Newest.Time):
		return false
	}
	return c.UID == e.Owner || e.Deployment != "" && deployment(p) == e.Deployment
}

// deployment returns the name of the Deployment of a pod, or "". A Deployment names its ReplicaSets by its own name and the
// hash that is also a label of their pods.
func deployment(p *corev1.Pod) string {
	c, hash := metav1.GetControllerOfNoCopy(p), p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if c == nil || c.Kind != kindReplicaSet || hash == "" {
		return ""
	}
	name, ok := strings.CutSuffix(c.Name, "-"+hash)
	if !ok {
		return ""
	}
	return name
}

// otherReplacement returns the replacement that follows from pods that terminate or start independently of the reconciler.
func otherReplacement(pods podIndex, now time.Time) replacement {
	var first replacement
	note := func(t replacement) {
		if first.wait == "" || t.stuck && !first.stuck {
			first = t
		}
	}
	for _, p := range pods.ending {
		note(terminating(p, now))
	}
	for _, p := range pods.live {
		if inject.Has(p) && !started(p) {
			note(starting(p, now))
		}
	}
	return first
}

func terminating(p *corev1.Pod, now time.Time) replacement {
	return replacement{wait: "pod " + p.Name + " of the same GatewaySync is still terminating", stuck: now.Sub(p.DeletionTimestamp.Time) > successorTimeout}
}

func starting(p *corev1.Pod, now time.Time) replacement {
	wait := "the agent of pod " + p.Name + " has not started"
	if s := agentStatus(p); s != nil && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
		wait += " (" + s.State.Waiting.Reason + ")"
	}
	return replacement{wait: wait + ": see its Events (kubectl --namespace " + p.Namespace + " describe pod " + p.Name + ")", stuck: now.Sub(p.CreationTimestamp.Time) > startTimeout}
}

// started reports whether a pod's agent has started, so that its gateway may start.
func started(p *corev1.Pod) bool {
	s := agentStatus(p)
	return s != nil && s.Started != nil && *s.Started
}

// agentStatus returns the container status of a pod's agent, or nil.
func agentStatus(p *corev1.Pod) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Name == inject.Container {
				return &list[i]
			}
		}
	}
	return nil
}

// nameInUse reports whether another live pod has the name of an evicted one.
func (u *Reconciler) nameInUse(namespace string, e eviction) bool {
	for _, w := range u.pods {
		if obj, ok, err := w.informer.GetIndexer().GetByKey(namespace + "/" + e.Pod); ok && err == nil {
			p, ok := obj.(*corev1.Pod)
			return ok && p.UID != e.UID && p.DeletionTimestamp == nil
		}
	}
	return false
}

// endTime returns when an evicted pod should have ended, or when its successor was last seen. A replica that takes over counts the
// time from its first check.
func (n *namespace) endTime(e eviction, now time.Time) time.Time {
	if _, ok := n.endTimes[e.UID]; !ok && e.Recreated {
		n.endTimes[e.UID] = now
	}
	return n.endTimes[e.UID]
}

// recordTimes updates the time that endTime returns. The owner may create the successor only after the pod has ended.
func (n *namespace) recordTimes(e eviction, pods podIndex, t replacement, now time.Time) {
	for _, p := range pods.ending {
		if p.UID == e.UID {
			n.endTimes[e.UID] = p.DeletionTimestamp.Time
		}
	}
	if t.recreated {
		n.endTimes[e.UID] = now
	}
}
