package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// Agent holds the metrics of an agent.
type Agent struct {
	reconciles   *prometheus.CounterVec
	reconcile    *prometheus.HistogramVec
	resolve      *prometheus.HistogramVec
	clone        *prometheus.HistogramVec
	sync         *prometheus.HistogramVec
	files        *prometheus.CounterVec
	scan         *prometheus.HistogramVec
	lastSync     *prometheus.GaugeVec
	drift        prometheus.Gauge
	lostAndFound prometheus.Gauge
	lostLimit    prometheus.Gauge
	info         *prometheus.GaugeVec
	behind       *behind
	rollbacks    *prometheus.CounterVec
	proposals    *prometheus.CounterVec
	uploads      *prometheus.CounterVec
	unstored     prometheus.Gauge
	proposed     *prometheus.GaugeVec
	syncLabels   prometheus.Labels
	profile      string
}

// seconds are the buckets of all durations, from 4 milliseconds to minutes.
var seconds = prometheus.ExponentialBuckets(0.004, 4, 9)

// NewAgent registers the metrics of the agent of one gateway.
func NewAgent(reg prometheus.Registerer, version, namespace, gatewaySync, gateway string) *Agent {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: name, Help: help, Buckets: seconds}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stoker", Name: name, Help: help})
	}
	a := &Agent{
		reconciles: counter("reconcile_total", "Iterations of a loop, by outcome class.", "loop", "result"),
		reconcile:  histogram("reconcile_duration_seconds", "Duration of an iteration of a loop.", "loop"),
		resolve:    histogram("ref_resolve_duration_seconds", "Duration of a ref lookup in git.", "result"),
		clone:      histogram("agent_clone_duration_seconds", "Duration of fetching a commit by kind of fetch.", "kind"),
		sync:       histogram("sync_duration_seconds", "Duration of a sync by reason of its outcome.", "result"),
		files:      counter("files_changed_total", "Files that syncs changed on the gateway.", "kind"),
		scan:       histogram("scan_api_duration_seconds", "Duration of a scan of the gateway.", "kind", "result"),
		lastSync: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "last_sync_timestamp_seconds",
			Help: "Unix time of the last sync after which the gateway counts as synced."}, []string{"namespace", "gatewaysync", "gateway"}),
		drift:        gauge("drift_files", "Owned files that were changed on the gateway since they were written."),
		lostAndFound: gauge("lost_and_found_bytes", "Bytes in lost+found."),
		lostLimit:    gauge("lost_and_found_limit_bytes", "Bytes above which lost+found loses its oldest folders."),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "gateway_info", Help: "Which gateway the agent serves; always 1."},
			[]string{"namespace", "gatewaysync", "gateway", "profile"}),
		behind:    newBehind(),
		rollbacks: counter("rollback_triggered_total", "Rollbacks: by a request for the whole fleet, which its lead counts, by a rollout for the gateways that it reached, by a snapshot of the gateway on request, or auto by the gateway itself.", "by"),
		proposals: counter("bidirectional_prs_created_total", "Pull requests with changes of the gateway, by kind of forge and result.", "provider", "result"),
		uploads:   counter("snapshot_uploads_total", "Attempts to copy a snapshot to object storage.", "result"),
		unstored:  gauge("snapshots_not_uploaded", "Snapshots and backups on the data volume that object storage lacks."),
		proposed: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "bidirectional_files",
			Help: "Files that were changed on the gateway, by state of their proposal."}, []string{"state"}),
		syncLabels: prometheus.Labels{"namespace": namespace, "gatewaysync": gatewaySync, "gateway": gateway},
	}
	reg.MustRegister(a.reconciles, a.reconcile, a.resolve, a.clone, a.sync, a.files, a.scan, a.lastSync, a.drift, a.lostAndFound, a.lostLimit,
		a.info, a.behind, a.rollbacks, a.proposals, a.proposed, a.uploads, a.unstored, buildInfo(version))
	for _, by := range []string{"request", "rollout", "snapshot", "auto"} { // increase() counts a first rollback only if there was a zero before
		a.rollbacks.WithLabelValues(by)
	}
	a.Profile("")
	return a
}

// Iterated records one iteration of a loop; result is the class of its outcome.
func (a *Agent) Iterated(loop, result string, d time.Duration) {
	a.reconciles.WithLabelValues(loop, result).Inc()
	a.reconcile.WithLabelValues(loop).Observe(d.Seconds())
}

// Resolved records a ref lookup in the remote repository; result is a reason.
func (a *Agent) Resolved(result string, d time.Duration) {
	a.resolve.WithLabelValues(result).Observe(d.Seconds())
}

// Fetched records a fetch; kind says how it was done.
func (a *Agent) Fetched(kind string, d time.Duration) {
	a.clone.WithLabelValues(kind).Observe(d.Seconds())
}

// Synced records a sync; result is its reason. If synced is true, the gateway counts as synced now.
func (a *Agent) Synced(result string, d time.Duration, synced bool, at time.Time) {
	a.sync.WithLabelValues(result).Observe(d.Seconds())
	if synced {
		a.lastSync.With(a.syncLabels).Set(float64(at.UnixMilli()) / 1000)
	}
}

// Changed records how many files a sync changed, by kind: added, modified, deleted, kept.
func (a *Agent) Changed(kind string, n int) { a.files.WithLabelValues(kind).Add(float64(n)) }

// Scanned records a scan; result is "ok" or a reason.
func (a *Agent) Scanned(kind, result string, d time.Duration) {
	a.scan.WithLabelValues(kind, result).Observe(d.Seconds())
}

// Drift sets the number of drifted files.
func (a *Agent) Drift(n int) { a.drift.Set(float64(n)) }

// LostAndFound sets the size of lost+found and its limit, in bytes.
func (a *Agent) LostAndFound(n, limit int64) {
	a.lostAndFound.Set(float64(n))
	a.lostLimit.Set(float64(limit))
}

// Behind sets why the gateway does not run the desired commit: a reason, or "" if it does.
func (a *Agent) Behind(reason v1alpha1.Reason) { a.behind.set(reason) }

// Profile sets the profile in force; "" if it is not known.
func (a *Agent) Profile(name string) {
	a.info.With(prometheus.Labels{"namespace": a.syncLabels["namespace"], "gatewaysync": a.syncLabels["gatewaysync"],
		"gateway": a.syncLabels["gateway"], "profile": name}).Set(1)
	if name != a.profile {
		a.info.DeletePartialMatch(prometheus.Labels{"profile": a.profile})
	}
	a.profile = name
}

// RolledBack counts a rollback. by is "request", "rollout", "snapshot" or "auto".
func (a *Agent) RolledBack(by string) { a.rollbacks.WithLabelValues(by).Inc() }

// ProposalCreated records an attempt to create a pull request. provider is a kind of spec.bidirectional.provider; result is "ok" or a
// reason.
func (a *Agent) ProposalCreated(provider, result string) {
	a.proposals.WithLabelValues(provider, result).Inc()
}

// ProposalFiles sets the number of changed files in a state: proposed or refused.
func (a *Agent) ProposalFiles(state string, n int) { a.proposed.WithLabelValues(state).Set(float64(n)) }

// Uploaded counts an attempt to copy a snapshot to object storage.
func (a *Agent) Uploaded(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	a.uploads.WithLabelValues(result).Inc()
}

// NotUploaded sets the number of snapshots and backups that object storage lacks.
func (a *Agent) NotUploaded(n int) { a.unstored.Set(float64(n)) }

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
