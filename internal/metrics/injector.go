package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// Injector holds the metrics of an injector.
type Injector struct {
	injections *prometheus.CounterVec
	without    *prometheus.GaugeVec
	evictions  *prometheus.CounterVec
	reconciles *prometheus.CounterVec
	reconcile  *prometheus.HistogramVec
	expiry     prometheus.Gauge
}

// NewInjector registers the metrics of an injector.
func NewInjector(reg prometheus.Registerer, version string) *Injector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: name, Help: help}, labels)
	}
	m := &Injector{
		injections: counter("injections_total", "Pods that were reviewed, by what became of them and why.", "result", "reason"),
		without: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "pods_without_agent",
			Help: "Pods that ask for an agent and have none, by reason; set by the replica that runs the reconciler."}, []string{"reason"}),
		evictions:  counter("repair_evictions_total", "Evictions of young pods that started without their agent.", "result"),
		reconciles: counter("reconcile_total", "Turns of a loop by outcome class.", "loop", "result"),
		reconcile: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "reconcile_duration_seconds",
			Help: "Duration of a turn of a loop.", Buckets: seconds}, []string{"loop"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "certificate_expiry_timestamp_seconds",
			Help: "Unix time at which the certificate that is served ends."}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "build_info", Help: "What is running; always 1."},
		[]string{"version", "goversion"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	reg.MustRegister(m.injections, m.without, m.evictions, m.reconciles, m.reconcile, m.expiry, build)
	return m
}

// none is the label value of an empty reason.
const none = "none"

func label(r v1alpha1.Reason) string {
	if r == "" {
		return none
	}
	return string(r)
}

// Injection records a reviewed pod: injected, unchanged, skipped, refused or failed.
func (m *Injector) Injection(result string, reason v1alpha1.Reason) {
	m.injections.WithLabelValues(result, label(reason)).Inc()
}

// Without sets the number of pods without their agent, by reason. Reasons that are not in pods are removed.
func (m *Injector) Without(pods map[v1alpha1.Reason]int) {
	m.without.Reset()
	for reason, n := range pods {
		m.without.WithLabelValues(label(reason)).Set(float64(n))
	}
}

// Eviction records an eviction attempt: evicted, blocked (by a disruption budget) or failed.
func (m *Injector) Eviction(result string) { m.evictions.WithLabelValues(result).Inc() }

// Turn records one iteration of a loop; result is the class of its outcome.
func (m *Injector) Turn(loop, result string, d time.Duration) {
	m.reconciles.WithLabelValues(loop, result).Inc()
	m.reconcile.WithLabelValues(loop).Observe(d.Seconds())
}

// CertificateEnds sets the expiry of the certificate that is served.
func (m *Injector) CertificateEnds(at time.Time) { m.expiry.Set(float64(at.Unix())) }
