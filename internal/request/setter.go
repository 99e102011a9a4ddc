package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
)

// FieldManager is the field manager of all writes.
const FieldManager = "stoker-request"

const (
	// attempts bounds the tries of a write that conflicts with other writers of the object, such as the lead's status.
	attempts = 12
	// firstPause is the pause before the second attempt. Pauses grow, and vary at random so that setters do not try again together.
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// Setter writes requests to GatewaySyncs, or to ConfigSyncs. It never writes the spec.
type Setter struct {
	client dynamic.Interface
	now    func() time.Time
	kind   kube.Kind
}

// NewSetter returns a Setter for GatewaySyncs. now is its clock; nil means time.Now.
func NewSetter(client dynamic.Interface, now func() time.Time) *Setter {
	if now == nil {
		now = time.Now
	}
	return &Setter{client: client, now: now, kind: kube.GatewaySync}
}

// Of returns a Setter for objects of a kind, GatewaySync or ConfigSync.
func (s *Setter) Of(kind kube.Kind) *Setter {
	of := *s
	of.kind = kind
	return &of
}

// ErrReplaced means that the object was deleted and another one has its name now. The error is also a NotFound, because the
// request was not meant for the new object.
var ErrReplaced = errors.New("it was deleted, and another object now has its name")

// Replaced returns ErrReplaced if o has another UID than uid. An empty uid matches any object.
func Replaced(o v1alpha1.Requestable, uid types.UID) error {
	if uid == "" || o.GetUID() == uid {
		return nil
	}
	kind := kube.GatewaySync
	if _, ok := o.(*v1alpha1.ConfigSync); ok {
		kind = kube.ConfigSync
	}
	return fmt.Errorf("%w: %w", apierrors.NewNotFound(kind.Resource().GroupResource(), o.GetName()), ErrReplaced)
}

// Ask carries out a request. Repeating one with an ID changes nothing; repeating one without only asks for another poll of git if its ref is
// desired already. An *InvalidError means that the sender must change the request, and ErrReplaced that its object is gone. Other errors come
// from the API server, the Decider or the context.
func (s *Setter) Ask(ctx context.Context, namespace, name string, r Request) (Answer, error) {
	if err := r.Check(); err != nil {
		return Answer{}, err
	}
	return s.change(ctx, namespace, name, r.UID, func(o v1alpha1.Requestable) (map[string]*string, Answer, error) {
		r, answer, err := r.decided(o)
		if err != nil || answer.Outcome != "" {
			return nil, answer, err
		}
		return r.plan(o, s.now())
	})
}

// Pause pauses the object, or resumes it if pause is false. It writes an annotation, which no GitOps tool reverts.
func (s *Setter) Pause(ctx context.Context, namespace, name string, pause bool) (Answer, error) {
	return s.change(ctx, namespace, name, "", func(o v1alpha1.Requestable) (map[string]*string, Answer, error) {
		answer := Answer{Outcome: Set, At: o.GetAnnotations()[v1alpha1.AnnotationRequestedAt]}
		value, there := o.GetAnnotations()[v1alpha1.AnnotationPaused]
		switch {
		case pause && value == "true", !pause && !there:
			answer.Outcome = Unchanged
			return nil, answer, nil
		case pause:
			yes := "true"
			return map[string]*string{v1alpha1.AnnotationPaused: &yes}, answer, nil
		}
		return map[string]*string{v1alpha1.AnnotationPaused: nil}, answer, nil
	})
}

// Propose asks the agent of a gateway to close its pull request and to propose the changes again. The error is an *InvalidError if the
// GatewaySync has no such gateway.
func (s *Setter) Propose(ctx context.Context, namespace, name, gateway string) (Answer, error) {
	return s.changeGateways(ctx, namespace, name, func(gs *v1alpha1.GatewaySync) (map[string]*string, Answer, error) {
		answer := Answer{Outcome: Set, At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
		value := annotation.ProposeValue(gateway, s.now())
		if !annotation.ProposesFor(value, gateway) || !hasGateway(gs, func(name string) bool { return name == gateway }) {
			return nil, Answer{}, invalid("%s has no gateway %.80q: stoker status %s lists them", name, gateway, name)
		}
		if !gs.Proposes() {
			return nil, Answer{}, fmt.Errorf("%s proposes no changes: set spec.bidirectional.enabled to true", name)
		}
		if gs.Annotations[v1alpha1.AnnotationPropose] == value {
			answer.Outcome = Unchanged
			return nil, answer, nil
		}
		return map[string]*string{v1alpha1.AnnotationPropose: &value}, answer, nil
	})
}

// Restore asks the agent of a gateway to bring it back to a snapshot. The error is an *InvalidError if the snapshot is not one of a gateway
// of the GatewaySync.
func (s *Setter) Restore(ctx context.Context, namespace, name, snapshot string) (Answer, error) {
	return s.changeGateways(ctx, namespace, name, func(gs *v1alpha1.GatewaySync) (map[string]*string, Answer, error) {
		answer := Answer{Outcome: Set, At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
		id := syntax.SnapshotID(snapshot)
		value := annotation.RestoreValue(id, s.now())
		if id == "" || !hasGateway(gs, func(name string) bool { return annotation.RestoresOn(value, name) != "" }) {
			return nil, Answer{}, invalid("%.80q is not a snapshot of a gateway of %s: stoker snapshots %s lists them", snapshot, name, name)
		}
		if gs.Annotations[v1alpha1.AnnotationRestore] == value {
			answer.Outcome = Unchanged
			return nil, answer, nil
		}
		return map[string]*string{v1alpha1.AnnotationRestore: &value}, answer, nil
	})
}

// hasGateway reports whether a gateway of gs may have a name that matches. A very large fleet has gateways without a row in the status.
func hasGateway(gs *v1alpha1.GatewaySync, matches func(name string) bool) bool {
	rows, o := gs.Status.DiscoveredGateways, gs.Status.Outcome
	return o != nil && int(o.Total) > len(rows) || slices.ContainsFunc(rows, func(g v1alpha1.DiscoveredGateway) bool { return matches(g.Name) })
}

// Retry requests the target commit again: gateways that rolled it back or restored a snapshot deliver it, and an aborted rollout begins
// again. Without any of these it fails.
func (s *Setter) Retry(ctx context.Context, namespace, name string) (Answer, error) {
	return s.changeGateways(ctx, namespace, name, func(gs *v1alpha1.GatewaySync) (map[string]*string, Answer, error) {
		answer := Answer{Outcome: Set, At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
		if !syntax.IsCommit(gs.Status.Retry) {
			return nil, Answer{}, fmt.Errorf("there is nothing to retry: no gateway of %s rolled the desired commit back", name)
		}
		value := annotation.RetryValue(gs.Status.Retry, s.now())
		if gs.Annotations[v1alpha1.AnnotationRetry] == value {
			answer.Outcome = Unchanged
			return nil, answer, nil
		}
		return map[string]*string{v1alpha1.AnnotationRetry: &value}, answer, nil
	})
}

// changeGateways is change for a request that only a GatewaySync has.
func (s *Setter) changeGateways(ctx context.Context, namespace, name string, plan func(*v1alpha1.GatewaySync) (map[string]*string, Answer, error)) (Answer, error) {
	if s.kind != kube.GatewaySync {
		return Answer{}, invalid("%s is not a GatewaySync, and has no gateways to request this of", name)
	}
	return s.change(ctx, namespace, name, "", func(o v1alpha1.Requestable) (map[string]*string, Answer, error) {
		return plan(o.(*v1alpha1.GatewaySync))
	})
}

// objects reads and annotates the objects of one kind in a namespace.
type objects interface {
	get(ctx context.Context, name string) (v1alpha1.Requestable, error)
	annotate(ctx context.Context, name string, patch []byte) (v1alpha1.Requestable, error)
}

// objectsOf implements objects.
type objectsOf[T any, P interface {
	*T
	v1alpha1.Requestable
}] struct{ *kube.Objects[T] }

func (o objectsOf[T, P]) get(ctx context.Context, name string) (v1alpha1.Requestable, error) {
	t, err := o.Get(ctx, name)
	return P(t), err
}

func (o objectsOf[T, P]) annotate(ctx context.Context, name string, patch []byte) (v1alpha1.Requestable, error) {
	t, err := o.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return P(t), err
}

func (s *Setter) objects(namespace string) objects {
	if s.kind == kube.ConfigSync {
		return objectsOf[v1alpha1.ConfigSync, *v1alpha1.ConfigSync]{kube.ConfigSyncs(s.client, namespace)}
	}
	return objectsOf[v1alpha1.GatewaySync, *v1alpha1.GatewaySync]{kube.GatewaySyncs(s.client, namespace)}
}

// Get reads an object of the Setter's kind.
func (s *Setter) Get(ctx context.Context, namespace, name string) (v1alpha1.Requestable, error) {
	return s.objects(namespace).get(ctx, name)
}

// change writes the annotations that plan returns for the current object. If another client has written the object meanwhile,
// it plans again, so that it never writes a decision about an older state. It sticks to the object with this uid, or to the one
// that it read first, because a new object of that name may belong to another user.
func (s *Setter) change(ctx context.Context, namespace, name string, uid types.UID, plan func(v1alpha1.Requestable) (map[string]*string, Answer, error)) (Answer, error) {
	objects := s.objects(namespace)
	var conflict error
	for attempt := range attempts {
		if attempt > 0 && !backoff.Wait(ctx, backoff.Jitter(min(firstPause<<(attempt-1), maxPause))) {
			return Answer{}, ctx.Err()
		}
		o, err := objects.get(ctx, name)
		if err != nil {
			return Answer{}, err
		}
		if err := Replaced(o, uid); err != nil {
			return Answer{}, err
		}
		uid = o.GetUID()
		write, answer, err := plan(o)
		if err != nil {
			return Answer{}, err
		}
		answer.Object = o
		if write == nil {
			return answer, nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": o.GetResourceVersion(), "uid": uid, "annotations": write,
		}})
		if err != nil {
			return Answer{}, err
		}
		answer.Object, err = objects.annotate(ctx, name, patch)
		if err == nil {
			return answer, nil
		}
		if !apierrors.IsConflict(err) {
			return Answer{}, err
		}
		conflict = err
	}
	return Answer{}, fmt.Errorf("%s %s/%s was changed during each of %d attempts: %w", s.kind.Name, namespace, name, attempts, conflict)
}
