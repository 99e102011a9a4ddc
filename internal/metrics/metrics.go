// Package metrics defines the metrics of the binaries. Label values come from closed sets only: no ref, path, URL or commit, so
// that the number of series does not grow with what is synced.
package metrics

import (
	"runtime"
	"sync"
	"time"

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

// behind exports for how long a gateway has been behind, and why. It computes the time when it is scraped, because nothing happens while a
// gateway waits.
type behind struct {
	desc   *prometheus.Desc
	mu     sync.Mutex
	reason v1alpha1.Reason
	since  time.Time
}

func newBehind() *behind {
	return &behind{desc: prometheus.NewDesc("stoker_behind_seconds", "Time since the gateway last ran the desired commit, verified, as this agent has seen it, by the reason now; no series if it does.", []string{"reason"}, nil)}
}

func (b *behind) set(reason v1alpha1.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason == "" {
		b.since = time.Now()
	}
	b.reason = reason
}

// Describe implements prometheus.Collector.
func (b *behind) Describe(c chan<- *prometheus.Desc) { c <- b.desc }

// Collect implements prometheus.Collector.
func (b *behind) Collect(c chan<- prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason != "" {
		c <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, time.Since(b.since).Seconds(), label(b.reason))
	}
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

// Sent counts a notification.
func (m *Notifier) Sent(kind v1alpha1.AlertType, result string) {
	m.sent.WithLabelValues(string(kind), result).Inc()
}
