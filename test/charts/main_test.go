package charts

import (
	"io"
	"log"
	"testing"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm warns there of values of a wrong type, which tests give it on purpose
	kubetest.Main(m)
}
