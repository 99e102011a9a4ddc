// Package kargo holds what Kargo is given: ClusterPromotionTasks, and ClusterAnalysisTemplates that verify a Stage. They are
// YAML; the Go beside them is only here to test them. It does what Kargo does with such files (inflates tasks, evaluates
// expressions, runs the http step, begins again after a restart), against the real receiver and real agents.
package kargo

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"stoker.io/stoker/test/fleet/plant"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	plant.Main(m)
}
