// Package fleet tests whole fleets. One real agent process per gateway runs against a real API server, a
// real git server and simulated gateways.
package fleet

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
