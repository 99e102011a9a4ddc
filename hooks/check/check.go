// Package check examines an installation and the gateways of a namespace. It reports problems and how to fix them, and changes
// nothing.
package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// State is the outcome of a check.
type State string

// The states. Unknown means that a check has no result, mostly because the user may not read what it needs.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
	Unknown State = "unknown"
)

// Topic is the subject of a check. docs/how-to/troubleshooting.md has a heading for each, with the prefix "check ".
type Topic string

// Topics lists all topics in the order of the output.
var Topics = []Topic{topicKinds, topicLeftovers, topicRoles, topicPolicies, topicWebhook, topicInjector, topicReceiver, topicSyncs, topicPods, topicBindings, topicLead, topicRights}

const (
	topicKinds     Topic = "kinds"
	topicLeftovers Topic = "leftovers"
	topicRoles     Topic = "roles"
	topicPolicies  Topic = "policies"
	topicWebhook   Topic = "webhook"
	topicInjector  Topic = "injector"
	topicReceiver  Topic = "receiver"
	topicSyncs     Topic = "gatewaysyncs"
	topicPods      Topic = "pods"
	topicBindings  Topic = "bindings"
	topicLead      Topic = "lead"
	topicRights    Topic = "rights"
)

// Finding is one result of a check. A check has one or more.
type Finding struct {
	State   State  `json:"state"`
	Check   Topic  `json:"check"`
	Message string `json:"message"`
	// Docs is a heading of the documentation, as PATH#ANCHOR from the root of the repository.
	Docs string `json:"docs"`
}

// Count returns the checks that have a failed finding, in the order of list, and the number of all checks.
func Count(list []Finding) (failed []Topic, all int) {
	seen := map[Topic]bool{}
	for _, f := range list {
		seen[f.Check] = true
		if f.State == Failed && !slices.Contains(failed, f.Check) {
			failed = append(failed, f.Check)
		}
	}
	return failed, len(seen)
}

const troubleshooting = "docs/how-to/troubleshooting.md#"

// finding returns a finding with the heading of the topic.
func (t Topic) finding(s State, message string) Finding {
	return Finding{s, t, message, troubleshooting + "check-" + string(t)}
}

// findingWithReason returns a finding with the heading of a reason, if the reason is known.
func (t Topic) findingWithReason(s State, reason v1alpha1.Reason, message string) Finding {
	f := t.finding(s, message)
	if reason.Known() {
		f.Docs = troubleshooting + strings.ToLower(string(reason))
	}
	return f
}

// unreadable returns the finding for objects that could not be read. It is Unknown if the user lacks the right.
func (t Topic) unreadable(what string, err error) Finding {
	state := Failed
	if apierrors.IsForbidden(err) {
		state = Unknown
	}
	return t.finding(state, what+" cannot be read: "+err.Error())
}

// Checker runs the checks.
type Checker struct {
	kube.Clients
	Namespace string // of the gateways
	// Now returns the time of the API server: locks and the status have its times. It hides Clients.Now, so that a test can set the time.
	Now func() time.Time
}

// ErrUnreachable means that no check ran because the API server does not answer.
var ErrUnreachable = errors.New("the API server does not answer")

// Check runs all checks. Its error is ErrUnreachable, or that of ctx; the findings are then incomplete.
func (c Checker) Check(ctx context.Context) ([]Finding, error) {
	if _, err := c.Core.Discovery().ServerVersion(); err != nil {
		return nil, errors.Join(ErrUnreachable, err)
	}
	served := c.kinds()
	receiver, receivers := c.receiver(ctx)
	configured := c.webhook(ctx)
	list := slices.Concat([]Finding{served}, c.leftovers(ctx), c.roles(ctx), c.policies(ctx), configured, []Finding{c.injector(ctx), receiver})
	if served.State == OK { // the other checks read these kinds
		list = append(list, c.namespace(ctx, receivers, configured[0].State == OK)...)
	}
	return list, ctx.Err()
}
