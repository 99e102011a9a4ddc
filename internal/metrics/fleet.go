package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Fleet holds the metrics of a GatewaySync that its lead reports. The series exist only while the agent leads, so that a sum
// over all agents counts each gateway once. Only the number of elections stays: each agent counts its own.
type Fleet struct {
	discovered, synced, target, conditions, reason, states *prometheus.GaugeVec

	took        *prometheus.HistogramVec
	elected     prometheus.Counter
	labels      prometheus.Labels
	types       []string // the conditions that have series
	reasonShown string   // the reason that has a series
}

// FleetState is what a lead knows of its fleet.
type FleetState struct {
	Discovered, Synced int
	// States are the numbers of gateways by state.
	States map[v1alpha1.GatewaySyncState]int
	// Conditions are those of the GatewaySync. Their types come from a closed list. The reason of Ready may come from a SyncReport.
	Conditions []metav1.Condition
	// Target is when the current target was set; zero if there is none.
	Target time.Time
}

// rollout are the buckets of the time until a whole fleet runs a commit, from a second to more than two hours.
var rollout = prometheus.ExponentialBuckets(1, 2, 14)

// NewFleet registers the metrics of a lead.
func NewFleet(reg prometheus.Registerer, namespace, gatewaySync string) *Fleet {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: name, Help: help}, append([]string{"namespace", "gatewaysync"}, labels...))
	}
	elected := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: "lead_transitions_total",
		Help: "How often this agent began to lead."}, []string{"namespace", "gatewaysync"})
	f := &Fleet{
		discovered: gauge("gateways_discovered", "Gateways that were discovered, as the lead sees them; no series while the agent does not lead."),
		synced:     gauge("gateways_synced", "Gateways that run the target commit, verified, as the lead sees them; no series while the agent does not lead."),
		target:     gauge("target_timestamp_seconds", "Unix time at which the current target was set; no series while the agent does not lead."),
		conditions: gauge("gatewaysync_condition", "Whether a condition of the GatewaySync has a status: 0 or 1; no series while the agent does not lead.", "type", "status"),
		reason:     gauge("gatewaysync_reason", "The reason of the condition Ready; always 1; no series while the agent does not lead.", "reason"),
		states:     gauge("gateways", "Gateways by state, as the lead sees them; no series while the agent does not lead.", "state"),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stoker", Name: "fleet_sync_seconds", Buckets: rollout,
			Help: "Time from a new target, or the request for it, until all gateways run it, verified; no series while the agent does not lead."},
			[]string{"namespace", "gatewaysync"}),
		labels: prometheus.Labels{"namespace": namespace, "gatewaysync": gatewaySync},
	}
	f.elected = elected.With(f.labels)
	reg.MustRegister(f.discovered, f.synced, f.target, f.conditions, f.reason, f.states, f.took, elected)
	return f
}

// Elected counts that this agent begins to lead.
func (f *Fleet) Elected() { f.elected.Inc() }

// Set records the state of the fleet.
func (f *Fleet) Set(s FleetState) {
	f.discovered.With(f.labels).Set(float64(s.Discovered))
	f.synced.With(f.labels).Set(float64(s.Synced))
	if s.Target.IsZero() {
		f.target.Delete(f.labels)
	} else {
		f.target.With(f.labels).Set(float64(s.Target.Unix()))
	}
	for _, state := range v1alpha1.GatewayStates {
		f.states.With(f.with("state", string(state))).Set(float64(s.States[state]))
	}
	f.setConditions(s.Conditions)
	f.took.With(f.labels) // so that increase() in PromQL counts the first observation, too
}

var statuses = []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}

func (f *Fleet) setConditions(conditions []metav1.Condition) {
	gone := f.types
	f.types = nil
	for _, c := range conditions {
		f.types = append(f.types, c.Type)
		for _, status := range statuses {
			is := 0.0
			if c.Status == status {
				is = 1
			}
			f.conditions.With(f.with("type", c.Type, "status", string(status))).Set(is)
		}
		if reason := label(v1alpha1.Reason(c.Reason)); c.Type == v1alpha1.ConditionReady && reason != f.reasonShown {
			f.reason.With(f.with("reason", reason)).Set(1)
			f.reason.Delete(f.with("reason", f.reasonShown))
			f.reasonShown = reason
		}
	}
	for _, t := range gone {
		if !slices.Contains(f.types, t) {
			f.conditions.DeletePartialMatch(prometheus.Labels{"type": t})
		}
	}
}

func (f *Fleet) with(pairs ...string) prometheus.Labels {
	l := prometheus.Labels{"namespace": f.labels["namespace"], "gatewaysync": f.labels["gatewaysync"]}
	for i := 0; i < len(pairs); i += 2 {
		l[pairs[i]] = pairs[i+1]
	}
	return l
}

// Converged records how long the fleet took until all its gateways ran a new target.
func (f *Fleet) Converged(d time.Duration) { f.took.With(f.labels).Observe(max(d, 0).Seconds()) }

// Clear removes the series when the agent stops leading.
func (f *Fleet) Clear() {
	for _, v := range []*prometheus.GaugeVec{f.discovered, f.synced, f.target, f.conditions, f.reason, f.states} {
		v.Reset()
	}
	f.took.Reset()
	f.types, f.reasonShown = nil, ""
}

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
