// Package metrics defines the metrics of the binaries. Label values come from closed sets, or are versions and names of objects, gateways and
// profiles. No label has a ref, path, URL or commit, so that the number of series does not grow with what is synced.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// buildInfo returns the metric that says which version runs.
func buildInfo(version string) prometheus.Collector {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "build_info", Help: "Version that is running; the value is always 1."},
		[]string{"version", "goversion"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	return build
}

// Label values that are not reasons.
const (
	none = "none" // no reason
	// unknown replaces reasons that this version does not know, because reports of newer or malicious agents must not create
	// labels.
	unknown = "Unknown"
)

// label returns the label value of a reason.
func label(r v1alpha1.Reason) string {
	switch {
	case r == "":
		return none
	case !r.Known():
		return unknown
	}
	return string(r)
}

// Notifier holds the metrics of stoker notify.
type Notifier struct{ sent *prometheus.CounterVec }

// NewNotifier registers the metrics of stoker notify.
func NewNotifier(reg prometheus.Registerer, version string) *Notifier {
	m := &Notifier{sent: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: "notifications_total",
		Help: "Notifications by the type of their receiver and the result: sent or failed."}, []string{"type", "result"})}
	for _, kind := range v1alpha1.AlertTypes {
		for _, result := range []string{"sent", "failed"} {
			m.sent.WithLabelValues(string(kind), result)
		}
	}
	reg.MustRegister(m.sent, buildInfo(version))
	return m
}

// Notification counts a change that was sent (result "sent"), or an attempt to send a message that failed ("failed").
func (m *Notifier) Notification(kind v1alpha1.AlertType, result string) {
	m.sent.WithLabelValues(string(kind), result).Inc()
}
