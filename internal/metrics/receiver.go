package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

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
