package request

import (
	"testing"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }
