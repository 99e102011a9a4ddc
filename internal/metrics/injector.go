package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

// Injector holds the metrics of an injector.
type Injector struct {
	injections       *prometheus.CounterVec
	podsWithoutAgent *prometheus.GaugeVec
	evictions        *prometheus.CounterVec
	reconciles       *prometheus.CounterVec
	reconcile        *prometheus.HistogramVec
	expiry           prometheus.Gauge
	withoutAgents    *prometheus.GaugeVec
	repairsStopped   prometheus.Gauge
}

// NewInjector registers the metrics of an injector.
func NewInjector(reg prometheus.Registerer, version string) *Injector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: name, Help: help}, labels)
	}
	m := &Injector{
		injections: counter("injections_total", "Pods that were reviewed, by result and reason.", "result", "reason"),
		podsWithoutAgent: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "pods_without_agent",
			Help: "Pods that ask for an agent and have none, by reason; set by the replica that runs the reconciler."}, []string{"reason"}),
		evictions:  counter("repair_evictions_total", "Evictions of young pods that started without their agent.", "result"),
		reconciles: counter("reconcile_total", "Iterations of a loop, by outcome class.", "loop", "result"),
		reconcile: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "reconcile_duration_seconds",
			Help: "Duration of an iteration of a loop.", Buckets: seconds}, []string{"loop"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "certificate_expiry_timestamp_seconds",
			Help: "Unix time at which the served certificate expires."}),
		withoutAgents: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "fleets_without_agents",
			Help: "1 for each GatewaySync with gateways whose agents are all away; set by the replica that runs the reconciler."}, []string{"namespace", "gatewaysync"}),
		repairsStopped: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: "repairs_stopped",
			Help: "GatewaySyncs whose pods are not evicted, because the successor of one does not start; set by the replica that runs the reconciler."}),
	}
	reg.MustRegister(m.injections, m.podsWithoutAgent, m.evictions, m.reconciles, m.reconcile, m.expiry, m.withoutAgents, m.repairsStopped, buildInfo(version))
	for _, result := range []string{"evicted", "blocked", "failed"} { // so that increase() in PromQL counts the first one, too
		m.evictions.WithLabelValues(result)
	}
	return m
}

// Injection records a reviewed pod: injected, unchanged, skipped, refused or failed.
func (m *Injector) Injection(result string, reason v1alpha1.Reason) {
	m.injections.WithLabelValues(result, label(reason)).Inc()
}

// SetPodsWithoutAgent sets the number of pods without their agent. The series of reasons that are not in byReason are removed.
func (m *Injector) SetPodsWithoutAgent(byReason map[v1alpha1.Reason]int) {
	m.podsWithoutAgent.Reset()
	for reason, n := range byReason {
		m.podsWithoutAgent.WithLabelValues(label(reason)).Set(float64(n))
	}
}

// SetFleets sets which GatewaySyncs have no agents, and for how many the repair of pods is stopped.
func (m *Injector) SetFleets(withoutAgents []types.NamespacedName, repairStopped int) {
	m.withoutAgents.Reset()
	for _, gs := range withoutAgents {
		m.withoutAgents.WithLabelValues(gs.Namespace, gs.Name).Set(1)
	}
	m.repairsStopped.Set(float64(repairStopped))
}

// Eviction records an eviction attempt: evicted, blocked (by a disruption budget) or failed.
func (m *Injector) Eviction(result string) { m.evictions.WithLabelValues(result).Inc() }

// Iterated records one iteration of a loop; result is the class of its outcome.
func (m *Injector) Iterated(loop, result string, d time.Duration) {
	m.reconciles.WithLabelValues(loop, result).Inc()
	m.reconcile.WithLabelValues(loop).Observe(d.Seconds())
}

// SetCertificateExpiry sets when the served certificate expires.
func (m *Injector) SetCertificateExpiry(at time.Time) { m.expiry.Set(float64(at.Unix())) }
