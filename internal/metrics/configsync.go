package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
)

// ConfigSync holds the metrics of stoker config run.
type ConfigSync struct {
	reconciles *prometheus.CounterVec
	pruned     *prometheus.CounterVec
	reconcile  *prometheus.HistogramVec
	list       func() []*v1alpha1.ConfigSync

	ready, targets, applied *prometheus.Desc
}

// NewConfigSync registers the metrics of stoker config run. list returns the ConfigSyncs that it serves. Their status is read at each scrape,
// so every replica reports the same.
func NewConfigSync(reg prometheus.Registerer, version string, list func() []*v1alpha1.ConfigSync) *ConfigSync {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("stoker_configsync_"+name, help, append([]string{"namespace", "configsync"}, labels...), nil)
	}
	m := &ConfigSync{
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: "reconcile_total",
			Help: "Iterations of a loop, by outcome class."}, []string{"loop", "result"}),
		reconcile: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "reconcile_duration_seconds",
			Help: "Duration of an iteration of a loop.", Buckets: seconds}, []string{"loop"}),
		pruned: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: "configsync_pruned_total",
			Help: "Objects that git no longer has, by result: deleted, or failed in a run."}, []string{"result"}),
		list:    list,
		ready:   desc("ready", "1 if the ConfigSync is Ready for its current spec, else 0."),
		targets: desc("targets", "Objects of the ConfigSync, at most 500, by what the last run did with them.", "state"),
		applied: desc("last_applied_timestamp_seconds", "Unix time at which all objects of a commit were applied last."),
	}
	for _, result := range []string{"deleted", "failed"} {
		m.pruned.WithLabelValues(result)
	}
	reg.MustRegister(m.reconciles, m.reconcile, m.pruned, m, buildInfo(version))
	return m
}

// Ran counts a run by the class of its outcome.
func (m *ConfigSync) Ran(class v1alpha1.Class, d time.Duration) {
	m.reconciles.WithLabelValues("configsync", string(class)).Inc()
	m.reconcile.WithLabelValues("configsync").Observe(d.Seconds())
}

// Pruned counts the objects that a run deleted and could not delete.
func (m *ConfigSync) Pruned(deleted, failed int) {
	m.pruned.WithLabelValues("deleted").Add(float64(deleted))
	m.pruned.WithLabelValues("failed").Add(float64(failed))
}

// Describe implements prometheus.Collector.
func (m *ConfigSync) Describe(to chan<- *prometheus.Desc) {
	to <- m.ready
	to <- m.targets
	to <- m.applied
}

// Collect implements prometheus.Collector.
func (m *ConfigSync) Collect(to chan<- prometheus.Metric) {
	for _, cs := range m.list() {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{cs.Namespace, cs.Name}, labels...)...)
		}
		ready := 0.0
		if meta.IsStatusConditionTrue(cs.Status.Conditions, v1alpha1.ConditionReady) && cs.Status.ObservedGeneration == cs.Generation {
			ready = 1
		}
		gauge(m.ready, ready)
		states := map[v1alpha1.ConfigTargetState]int{}
		for _, row := range cs.Status.Targets {
			states[row.State]++
		}
		for state, n := range states {
			gauge(m.targets, float64(n), string(state))
		}
		if at := cs.Status.LastSyncedTime; at != nil {
			gauge(m.applied, float64(at.Unix()))
		}
	}
}
