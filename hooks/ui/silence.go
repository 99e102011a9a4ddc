package ui

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

// silence is why a site does not say what its gateways run, and what is known nevertheless. The zero value means that it answers.
type silence struct {
	err        error
	name       string    // of the site; "" if it is the only one
	since, now time.Time // since is when the API server last answered; zero for never
}

// silent returns why the API server of the site does not answer, or the zero value if it does. A site counts as answering if the user only
// lacks the right to list SyncTargets.
func (x *site) silent(l sites.Leads) silence {
	answered, err := x.failure()
	if err == nil && l.Err != nil && !errors.Is(l.Err, context.Canceled) && (kube.Transient(l.Err) || apierrors.IsUnauthorized(l.Err)) {
		err = l.Err
	}
	if err == nil {
		return silence{}
	}
	q := silence{err: err, since: answered, now: time.Now()}
	if x.path != "" {
		q.name = clean(x.Context, 100)
	}
	return q
}

// String returns what the user should know, or "" if the site answers.
func (q silence) String() string {
	if q.err == nil {
		return ""
	}
	text := "no answer"
	switch {
	case apierrors.IsUnauthorized(q.err):
		text = "the API server rejects your credentials"
	case apierrors.IsForbidden(q.err):
		text = "you may not read GatewaySyncs"
	case apierrors.IsNotFound(q.err):
		text = "the cluster does not serve GatewaySyncs"
	case !q.since.IsZero():
		text += " for " + duration.HumanDuration(q.now.Sub(q.since))
	}
	if q.since.IsZero() {
		return text + "; nothing was read yet"
	}
	layout := "15:04:05"
	if q.now.Sub(q.since) > 12*time.Hour {
		layout = "2006-01-02 15:04:05"
	}
	return text + "; what is shown is from " + q.since.Local().Format(layout)
}

// chip returns the state of a site that does not answer.
func (q silence) chip() chip {
	switch {
	case apierrors.IsUnauthorized(q.err), apierrors.IsForbidden(q.err):
		return chip{toneUnknown, "Rejected"}
	case apierrors.IsNotFound(q.err):
		return chip{toneUnknown, "No Stoker"}
	}
	return chip{toneUnknown, "No answer"}
}

// link returns the end of the text in the corner of the page: which site does not answer; "" if it does.
func (q silence) link() string {
	switch {
	case q.err == nil:
		return ""
	case q.name == "":
		return "the API server does not answer"
	}
	return q.name + " does not answer"
}

func (x *site) fleet(namespace, name string) (*v1alpha1.GatewaySync, error) {
	if x.fleets == nil {
		return nil, x.Err
	}
	return x.fleets.Get(namespace, name)
}

// notices returns a notice if GatewaySyncs cannot be read, or else one if SyncTargets cannot be read.
func (x *site) notices(l sites.Leads) (list []notice) {
	if q := x.silent(l); q.err != nil {
		list = append(list, x.readNotice(q.err, "GatewaySyncs", "get, list and watch gatewaysyncs.stoker.io",
			"So what the gateways run now is not known."))
	} else if l.Err != nil && !errors.Is(l.Err, context.Canceled) {
		list = append(list, x.readNotice(l.Err, "SyncTargets", "list synctargets.stoker.io",
			"So it takes up to "+v1alpha1.ConfirmedFor.String()+" until the page shows that no agent leads."))
	}
	return list
}

// readNotice returns a notice about objects that could not be read: which right is missing, or why the API server does not
// answer. what names the objects, and text is the consequence.
func (x *site) readNotice(err error, what, right, text string) notice {
	switch {
	case apierrors.IsForbidden(err):
		scope := "in namespace " + x.Namespace
		if x.Namespace == "" {
			scope = "in all namespaces (or choose one with --namespace)"
		}
		return notice{toneHeld, "You may not read " + what, text + " Your user lacks the right to " + right + " " + scope +
			". The ClusterRole stoker-view grants what this page reads of Stoker; pods and pods/proxy need a role of your own."}
	case apierrors.IsUnauthorized(err):
		return notice{toneFail, "The API server rejects your credentials", text + " Log in again, then restart stoker ui."}
	case apierrors.IsNotFound(err):
		return notice{toneFail, "The cluster does not serve " + what, text + " Install the chart, or its custom resource definitions."}
	}
	return notice{toneFail, what + " cannot be read", text + " " + clean(sites.Cause(err).Error(), 400)}
}
