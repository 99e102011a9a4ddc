package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// built returns the metric that says which version runs.
func built(version string) prometheus.Collector {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stoker", Name: "build_info", Help: "Version that is running; the value is always 1."},
		[]string{"version", "goversion"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	return build
}
