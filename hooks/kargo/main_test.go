// Package kargo tests the Kargo integration of charts/stoker/files/kargo: ClusterPromotionTasks, and ClusterAnalysisTemplates that verify
// a Stage. It implements the necessary parts of Kargo: inflating tasks, evaluating expressions, the http step, and restarts. The tests use
// the real receiver and real agents.
package kargo

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"stoker.io/stoker/test/fleet/plant"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	plant.Main(m)
}
