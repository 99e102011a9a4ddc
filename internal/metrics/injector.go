package metrics

import (
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
	leaderless prometheus.Gauge
	stopped    prometheus.Gauge
}

// NewInjector registers the metrics of an injector.
func NewInjector(reg prometheus.Registerer, version string) *Injector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: name, Help: help}, labels)
	}
	m := &Injector{
		injections: counter("injections_total", "Pods that were reviewed, by result and reason.", "result", "reason"),
		without: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "pods_without_agent",
			Help: "Pods that ask for an agent and have none, by reason; set by the replica that runs the reconciler."}, []string{"reason"}),
		evictions:  counter("repair_evictions_total", "Evictions of young pods that started without their agent.", "result"),
		reconciles: counter("reconcile_total", "Turns of a loop by outcome class.", "loop", "result"),
		reconcile: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "reconcile_duration_seconds",
			Help: "Duration of an iteration of a loop.", Buckets: seconds}, []string{"loop"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "certificate_expiry_timestamp_seconds",
			Help: "Unix time at which the certificate that is served ends."}),
		leaderless: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "fleets_without_agents",
			Help: "GatewaySyncs with gateways whose agents are all away; set by the replica that runs the reconciler."}),
		stopped: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "repairs_stopped",
			Help: "GatewaySyncs whose pods are not evicted, because the successor of one does not start; set by the replica that runs the reconciler."}),
	}
	reg.MustRegister(m.injections, m.without, m.evictions, m.reconciles, m.reconcile, m.expiry, m.leaderless, m.stopped, built(version))
	for _, result := range []string{"evicted", "blocked", "failed"} { // increase() counts a first one only if there was a zero before
		m.evictions.WithLabelValues(result)
	}
	return m
}

// Label values of an empty reason, and of one that is not in the list: an agent may be newer, or its report forged.
const (
	none    = "none"
	unknown = "Unknown"
)

func label(r v1alpha1.Reason) string {
	switch {
	case r == "":
		return none
	case !r.Known():
		return unknown
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

// Fleets sets how many GatewaySyncs have no agents, and in how many the repair of pods is stopped.
func (m *Injector) Fleets(withoutAgents, repairStopped int) {
	m.leaderless.Set(float64(withoutAgents))
	m.stopped.Set(float64(repairStopped))
}

// Eviction records an eviction attempt: evicted, blocked (by a disruption budget) or failed.
func (m *Injector) Eviction(result string) { m.evictions.WithLabelValues(result).Inc() }

// Iterated records one iteration of a loop; result is the class of its outcome.
func (m *Injector) Iterated(loop, result string, d time.Duration) {
	m.reconciles.WithLabelValues(loop, result).Inc()
	m.reconcile.WithLabelValues(loop).Observe(d.Seconds())
}

// CertificateEnds sets the expiry of the certificate that is served.
func (m *Injector) CertificateEnds(at time.Time) { m.expiry.Set(float64(at.Unix())) }
