// Package check looks at an installation and at the gateways of a namespace, and says what is wrong and how to mend it.
// It only reads.
package check

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// State is how a check came out.
type State string

// The states. Unknown: whoever looks may not see it.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
	Unknown State = "unknown"
)

// Topic is what a check is about. It is a heading of docs/troubleshooting.md, with "check " before it.
type Topic string

// Topics are all of them, in their order.
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

// Finding is one line of the answer.
type Finding struct {
	State   State  `json:"state"`
	Check   Topic  `json:"check"`
	Message string `json:"message"`
	// ReadOn is a heading of the documentation, by its place in the repository.
	ReadOn string `json:"readOn"`
}

const page = "docs/troubleshooting.md#"

// on makes a finding about a topic.
func (t Topic) on(s State, message string) Finding {
	return Finding{s, t, message, page + "check-" + string(t)}
}

// because makes a finding that has a reason of the closed list.
func (t Topic) because(s State, reason v1alpha1.Reason, message string) Finding {
	f := t.on(s, message)
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			f.ReadOn = page + lower(string(reason))
		}
	}
	return f
}

// unseen is the finding for what could not be read.
func (t Topic) unseen(what string, err error) Finding {
	state := Failed
	if apierrors.IsForbidden(err) {
		state = Unknown
	}
	return t.on(state, what+" cannot be read: "+err.Error())
}

// Looker looks.
type Looker struct {
	kube.Clients
	Namespace string
	Now       func() time.Time
}

// maxList bounds what is read of a kind.
const maxList = 5000

// ErrUnreachable means that nothing can be said: the API server does not answer.
var ErrUnreachable = errors.New("the API server does not answer")

// Look goes through all checks. The error is the API server's where it answers nothing at all.
func (l Looker) Look(ctx context.Context) ([]Finding, error) {
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
		return list, ctx.Err() // the rest is about objects of these kinds
	}
	return append(list, l.namespace(ctx, doors)...), ctx.Err()
}
