package metrics

import "github.com/prometheus/client_golang/prometheus"

// Fleet holds the metrics of a GatewaySync that its lead reports. The series exist only while the agent leads, so that a sum
// over all agents counts each gateway once.
type Fleet struct {
	discovered, synced *prometheus.GaugeVec
	labels             prometheus.Labels
}

// NewFleet registers the metrics of a lead.
func NewFleet(reg prometheus.Registerer, namespace, gatewaySync string) *Fleet {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: name, Help: help}, []string{"namespace", "gatewaysync"})
	}
	f := &Fleet{
		discovered: gauge("gateways_discovered", "Gateways that were discovered, as the lead sees them; no series where the agent does not lead."),
		synced:     gauge("gateways_synced", "Gateways that run the target commit, verified, as the lead sees them; no series where the agent does not lead."),
		labels:     prometheus.Labels{"namespace": namespace, "gatewaysync": gatewaySync},
	}
	reg.MustRegister(f.discovered, f.synced)
	return f
}

// Set records the number of gateways and how many of them are synced.
func (f *Fleet) Set(discovered, synced int) {
	f.discovered.With(f.labels).Set(float64(discovered))
	f.synced.With(f.labels).Set(float64(synced))
}

// Clear removes the series when the agent stops leading.
func (f *Fleet) Clear() {
	f.discovered.Delete(f.labels)
	f.synced.Delete(f.labels)
}
