// Package prometheus tests the alerts and dashboards with the code of Prometheus. It evaluates every expression on samples that it
// scraped from a real fleet, which it brings into every state. The scrapes are not kept: each run makes its own.
package prometheus

import (
	"testing"

	"stoker.io/stoker/test/fleet/plant"
)

func TestMain(m *testing.M) { plant.Main(m) }

const (
	files        = "../../charts/stoker/files/"
	rulesFile    = files + "prometheus/rules.yaml"
	dashboardDir = files + "grafana/"
	docs         = "../../docs/"
)
