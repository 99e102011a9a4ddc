package charts

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strconv"
	"testing"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm warns there of values of a wrong type, which tests give it on purpose
	flag.Parse()
	// Half of the tests wait for API servers to start and for commands to answer: on two processors, two at a time are too few.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // it is a number
		}
	}
	code := kubetest.M{M: m}.Run()
	if err := errors.Join(os.RemoveAll(programs.dir), os.RemoveAll(helm.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "programs that were built:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
