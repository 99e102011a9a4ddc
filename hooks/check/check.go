// Package check examines an installation and the gateways of a namespace, and reports problems and how to fix them. It only
// reads.
package check

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// State is the outcome of a check.
type State string

// The states. Unknown means that the user may not read what the check needs.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
	Unknown State = "unknown"
)

// Topic is the subject of a check. docs/how-to/troubleshooting.md has a heading for each, with the prefix "check ".
type Topic string

// Topics lists all topics in the order of the output.
var Topics = []Topic{kinds, leftovers, roles, policies, webhook, injector, receiver, syncs, pods, bindings, lead, rights}

const (
	kinds     Topic = "kinds"
	leftovers Topic = "leftovers"
	roles     Topic = "roles"
	policies  Topic = "policies"
	webhook   Topic = "webhook"
	injector  Topic = "injector"
	receiver  Topic = "receiver"
	syncs     Topic = "gatewaysyncs"
	pods      Topic = "pods"
	bindings  Topic = "bindings"
	lead      Topic = "lead"
	rights    Topic = "rights"
)

// Finding is one line of the output.
type Finding struct {
	State   State  `json:"state"`
	Check   Topic  `json:"check"`
	Message string `json:"message"`
	// ReadOn is a heading of the documentation, relative to the root of the repository.
	ReadOn string `json:"readOn"`
}

const page = "docs/how-to/troubleshooting.md#"

// on returns a finding about the topic.
func (t Topic) on(s State, message string) Finding {
	return Finding{s, t, message, page + "check-" + string(t)}
}

// because returns a finding with a reason, which has a heading of its own.
func (t Topic) because(s State, reason v1alpha1.Reason, message string) Finding {
	f := t.on(s, message)
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			f.ReadOn = page + lower(string(reason))
		}
	}
	return f
}

// unseen returns the finding for an object that could not be read.
func (t Topic) unseen(what string, err error) Finding {
	state := Failed
	if apierrors.IsForbidden(err) {
		state = Unknown
	}
	return t.on(state, what+" cannot be read: "+err.Error())
}

// Checker runs the checks.
type Checker struct {
	kube.Clients
	Namespace string
	Now       func() time.Time
}

// maxList bounds each list.
const maxList = 5000

// ErrUnreachable means that no check ran because the API server does not answer.
var ErrUnreachable = errors.New("the API server does not answer")

// Check runs all checks. It fails if the API server does not answer.
func (l Checker) Check(ctx context.Context) ([]Finding, error) {
	if _, err := l.Core.Discovery().ServerVersion(); err != nil {
		return nil, errors.Join(ErrUnreachable, err)
	}
	served := l.kinds()
	list := append([]Finding{served}, l.leftovers(ctx)...)
	list = append(list, l.roles(ctx)...)
	list = append(list, l.policies(ctx)...)
	list = append(list, l.webhook(ctx)...)
	list = append(list, l.injector(ctx))
	door, doors := l.receiver(ctx)
	list = append(list, door)
	if served.State != OK {
		return list, ctx.Err() // all other checks read these kinds
	}
	return append(list, l.namespace(ctx, doors)...), ctx.Err()
}
