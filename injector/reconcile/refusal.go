package reconcile

import (
	"context"
	"fmt"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// reasonFailedCreate is the reason of the Events by which Kubernetes' controllers say that the API server refuses a pod: by Pod
	// Security, a quota, a LimitRange, or a webhook.
	reasonFailedCreate = "FailedCreate"
	// refusalInterval is how often these Events are read, refusalAge how old one may be (controllers try again every quarter of an hour
	// at least), maxRefusals how many are read, and maxRefusal bounds the text in characters.
	refusalInterval, refusalAge = time.Minute, 20 * time.Minute
	maxRefusals, maxRefusal     = 50, 400
)

// refused returns why a workload of a namespace cannot create its pods, by the latest Event that says so, or "". The caller needs it only
// if a GatewaySync has neither a lead nor pods.
func (u *Reconciler) refused(ctx context.Context, n *namespace, now time.Time) (string, error) {
	if now.Sub(n.refusedAt) < refusalInterval {
		return n.refusal, nil
	}
	list, err := u.Core.EventsV1().Events(n.name).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reasonFailedCreate, Limit: maxRefusals})
	if err != nil {
		return "", fmt.Errorf("events of namespace %s: %w", n.name, err)
	}
	n.refusal, n.refusedAt = latestRefusal(list.Items, u.Now()), now
	return n.refusal, nil
}

func latestRefusal(events []eventsv1.Event, now time.Time) string {
	var latest *eventsv1.Event
	for i := range events {
		if e := &events[i]; e.Reason == reasonFailedCreate && now.Sub(lastSeen(e)) < refusalAge && (latest == nil || lastSeen(e).After(lastSeen(latest))) {
			latest = e
		}
	}
	if latest == nil {
		return ""
	}
	note := []rune(strings.ToValidUTF8(latest.Note, "\uFFFD"))
	if len(note) > maxRefusal {
		note = append(note[:maxRefusal-1], '…')
	}
	return fmt.Sprintf("%s %s has no pods: %s", latest.Regarding.Kind, latest.Regarding.Name, string(note))
}

// lastSeen returns when an Event was last repeated.
func lastSeen(e *eventsv1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.DeprecatedLastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
