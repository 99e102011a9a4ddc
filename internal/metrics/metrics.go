// Package metrics defines the metrics of the binaries. Label values come from closed sets only: no ref, path, URL or commit, so
// that the number of series does not grow with what is synced.
package metrics

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

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

// Notification counts an attempt to send a notification: sent or failed.
func (m *Notifier) Notification(kind v1alpha1.AlertType, result string) {
	m.sent.WithLabelValues(string(kind), result).Inc()
}

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

// Receiver holds the metrics of a receiver.
type Receiver struct {
	received    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	statuses    *prometheus.CounterVec
	secrets     *prometheus.CounterVec
	panics      prometheus.Counter
	connections prometheus.Gauge
	closed      *prometheus.CounterVec
	expiry      prometheus.Gauge
}

// NewReceiver registers the metrics of a receiver.
func NewReceiver(reg prometheus.Registerer, version string) *Receiver {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: name, Help: help})
	}
	m := &Receiver{
		received: counter("webhook_received_total", "Requests to /webhook, by sender and result.", "source", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "webhook_duration_seconds",
			Help: "Time from the header of a request to its answer.", Buckets: seconds}, []string{"result"}),
		statuses: counter("webhook_status_requests_total", "Requests to /status, by the phase that was returned, or the reason why none was.", "result"),
		secrets:  counter("webhook_secret_reads_total", "Reads of Secrets by outcome.", "result"),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "stoker", Name: "webhook_panics_total",
			Help: "Panics during requests: a defect, please report it."}),
		connections: gauge("webhook_connections", "Connections that are open."),
		closed:      counter("webhook_connections_closed_total", "Connections that were closed because there were too many, by whose.", "reason"),
		expiry:      gauge("certificate_expiry_timestamp_seconds", "Unix time at which the served certificate expires; 0 without TLS."),
	}
	reg.MustRegister(m.received, m.duration, m.statuses, m.secrets, m.panics, m.connections, m.closed, m.expiry, buildInfo(version))
	return m
}

// Received records a request to /webhook. source is the sender, or "unknown" if the request was not authenticated.
func (m *Receiver) Received(source, result string, d time.Duration) {
	m.received.WithLabelValues(source, result).Inc()
	m.duration.WithLabelValues(result).Observe(d.Seconds())
}

// Status records a request to /status.
func (m *Receiver) Status(result string) { m.statuses.WithLabelValues(result).Inc() }

// SecretRead records a read of a Secret: read, missing, forbidden or failed.
func (m *Receiver) SecretRead(result string) { m.secrets.WithLabelValues(result).Inc() }

// Panic records a request whose handler panicked.
func (m *Receiver) Panic() { m.panics.Inc() }

// Connections sets the number of open connections.
func (m *Receiver) Connections(n int) { m.connections.Set(float64(n)) }

// ConnectionClosed records a connection that was closed because there were too many, by reason.
func (m *Receiver) ConnectionClosed(reason string) { m.closed.WithLabelValues(reason).Inc() }

// SetCertificateExpiry sets when the served certificate expires.
func (m *Receiver) SetCertificateExpiry(at time.Time) { m.expiry.Set(float64(at.Unix())) }
