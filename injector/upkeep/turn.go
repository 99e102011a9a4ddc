package upkeep

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
	// successorWithin is how long whoever made a pod has to make it again when it is gone, and startWithin how long the agent
	// of a pod has to start: its image is pulled, and with startup "wait" the first sync is done.
	successorWithin, startWithin = time.Minute, 5 * time.Minute
	// lostAfter is when an eviction that was written down, and whose pod is still there, was not made.
	lostAfter = 30 * time.Second
	// stateful is the kind of owner that makes a pod again under its name.
	stateful = "StatefulSet"
	// replicas is the kind of owner that a Deployment replaces with every change of its template.
	replicas = "ReplicaSet"
)

// turn is whether a pod of a GatewaySync may be evicted now. One pod at a time is away for it, with those of other owners: the
// two of a redundant pair are two StatefulSets. And the next goes only when the one before has come up, because a namespace may
// refuse the agent's container, and a node its image.
type turn struct {
	wait string // for what has to be waited, "" for nothing
	// stuck means that it will not come by itself, absent that an evicted pod has no successor, and came that it has one.
	stuck, absent, came bool
}

// turns finds out where each GatewaySync stands, and says of those that are stuck what to look at.
func (u *Upkeep) turns(ctx context.Context, n *namespace, all []*v1alpha1.GatewaySync, there podsThere) (map[string]turn, error) {
	turns := map[string]turn{}
	var errs []error
	for _, gs := range all {
		mine := there.of(gs, all)
		e, ok := u.ledger.of(gs.UID)
		if ok {
			now := u.Now()
			t, over := e.turn(mine, n.ended(e, now), u.exists(gs.Namespace, e), now)
			if !over {
				n.see(e, mine, t, now)
				turns[gs.Name] = t
				if t.came && !e.Came {
					e.Came = true
					errs = append(errs, u.ledger.put(ctx, gs.UID, e))
				}
				if t.stuck {
					errs = append(errs, u.tellSync(ctx, gs, e.UID, e.Pod, corev1.EventTypeWarning, v1alpha1.EventRepairStopped, "Evict", t.wait+". Until then no other pod is evicted"))
				}
				continue
			}
			delete(n.ends, e.UID)
			if err := u.ledger.drop(ctx, gs.UID); err != nil {
				turns[gs.Name] = turn{wait: "pod " + e.Pod + " has come up, and that is written down"}
				errs = append(errs, err)
				continue
			}
		}
		turns[gs.Name] = others(mine, u.Now())
	}
	return turns, errors.Join(errs...)
}

// turn says how far the successor of a pod is; over, that there is nothing to wait for any more. ends is when the pod was to
// have ended, or its successor was last there, where that was seen; exists, that there is a pod of its name.
func (e eviction) turn(there podsThere, ends time.Time, exists bool, now time.Time) (t turn, over bool) {
	for _, p := range there.live {
		if p.UID == e.UID {
			return turn{wait: "pod " + e.Pod + " is evicted"}, now.Sub(e.At.Time) > lostAfter
		}
	}
	for _, p := range there.ending {
		if p.UID == e.UID {
			return endsYet(p, now), false
		}
	}
	var came, coming *corev1.Pod
	for _, p := range there.live {
		switch {
		case !e.succeeds(p):
		case !inject.Has(p):
			came = p
		case started(p):
			return turn{}, true
		default:
			coming = p
		}
	}
	if ends.Before(e.At.Time) {
		ends = e.At.Time
	}
	switch {
	case coming != nil:
		t := startsYet(coming, now)
		t.came = true
		return t, false
	case came != nil:
		return turn{came: true, stuck: true, wait: "pod " + e.Pod + " was evicted for this, and its successor " + came.Name + " has no agent either: can the API server reach the injector?"}, false
	case exists:
		return turn{}, true // it asks for no agent any more
	}
	if e.Came && now.Sub(ends) > successorWithin {
		return turn{}, true // who made it once has let go of it since: it was scaled down or deleted
	}
	t = turn{absent: true, stuck: now.Sub(ends) > successorWithin, wait: "pod " + e.Pod + " was evicted, so that it starts again with an agent, and " + e.By + " has not made it again"}
	if t.stuck {
		kind, name, _ := strings.Cut(e.By, " ")
		t.wait += fmt.Sprintf(": it was scaled down or deleted, or a LimitRange, a quota or a policy of the namespace refuses the agent's container. The Events of the %s say so (kubectl --namespace %s describe %s %s)",
			kind, e.Namespace, strings.ToLower(kind), name)
	}
	return t, false
}

// succeeds reports whether p was made instead of the pod that was evicted: under its name, or later by the same owner, or by
// another ReplicaSet of the same Deployment, whose template was changed meanwhile.
func (e eviction) succeeds(p *corev1.Pod) bool {
	c := metav1.GetControllerOfNoCopy(p)
	switch {
	case p.Name == e.Pod:
		return true
	case c == nil, c.Kind == stateful, !p.CreationTimestamp.After(e.Newest.Time):
		return false
	}
	return c.UID == e.Owner || e.Deployment != "" && deployment(p) == e.Deployment
}

// deployment returns the name of the Deployment whose ReplicaSet made a pod, "" where it is a ReplicaSet of its own or another
// kind. It names its ReplicaSets by itself and the hash with which it labels their pods.
func deployment(p *corev1.Pod) string {
	c, hash := metav1.GetControllerOfNoCopy(p), p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if c == nil || c.Kind != replicas || hash == "" {
		return ""
	}
	name, ok := strings.CutSuffix(c.Name, "-"+hash)
	if !ok {
		return ""
	}
	return name
}

// others looks at what happens to the pods of a GatewaySync beside repair.
func others(there podsThere, now time.Time) turn {
	var first turn
	note := func(t turn) {
		if first.wait == "" || t.stuck && !first.stuck {
			first = t
		}
	}
	for _, p := range there.ending {
		note(endsYet(p, now))
	}
	for _, p := range there.live {
		if inject.Has(p) && !started(p) {
			note(startsYet(p, now))
		}
	}
	return first
}

func endsYet(p *corev1.Pod, now time.Time) turn {
	return turn{wait: "pod " + p.Name + " of the same GatewaySync has not ended", stuck: now.Sub(p.DeletionTimestamp.Time) > successorWithin}
}

func startsYet(p *corev1.Pod, now time.Time) turn {
	wait := "the agent of pod " + p.Name + " has not started"
	if s := agentStatus(p); s != nil && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
		wait += " (" + s.State.Waiting.Reason + ")"
	}
	return turn{wait: wait + ": its Events say why (kubectl --namespace " + p.Namespace + " describe pod " + p.Name + ")", stuck: now.Sub(p.CreationTimestamp.Time) > startWithin}
}

// started reports whether a pod's agent has started, so that its gateway may.
func started(p *corev1.Pod) bool {
	s := agentStatus(p)
	return s != nil && s.Started != nil && *s.Started
}

// agentStatus returns what the kubelet says of a pod's agent.
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

// exists reports whether there is a pod with the name of one that was evicted, whatever it asks for, and that is to stay.
func (u *Upkeep) exists(namespace string, e eviction) bool {
	for _, w := range u.pods {
		if obj, ok, err := w.informer.GetIndexer().GetByKey(namespace + "/" + e.Pod); ok && err == nil {
			p, ok := obj.(*corev1.Pod)
			return ok && p.UID != e.UID && p.DeletionTimestamp == nil
		}
	}
	return false
}

// ended is when a pod that was evicted is to have ended, or its successor was last there, as far as that was seen. Who took
// upkeep over has not seen how long the successor is gone, and counts from its first look.
func (n *namespace) ended(e eviction, now time.Time) time.Time {
	if _, ok := n.ends[e.UID]; !ok && e.Came {
		n.ends[e.UID] = now
	}
	return n.ends[e.UID]
}

// see remembers that: the successor may come only when the pod has ended.
func (n *namespace) see(e eviction, there podsThere, t turn, now time.Time) {
	for _, p := range there.ending {
		if p.UID == e.UID {
			n.ends[e.UID] = p.DeletionTimestamp.Time
		}
	}
	if t.came {
		n.ends[e.UID] = now
	}
}
