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
	log.SetOutput(io.Discard) // Helm logs warnings about values of a wrong type, which some tests use
	flag.Parse()
	// About half of the tests mostly wait for API servers and commands. With two processors, two tests at
	// a time would leave them idle.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // cannot happen: the value is a number
		}
	}
	code := kubetest.M{M: m}.Run()
	if err := errors.Join(os.RemoveAll(programs.dir), os.RemoveAll(helm.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "programs that were built:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
