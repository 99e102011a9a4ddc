//go:build linux

// Package e2e installs Stoker on a real Kubernetes with nodes and lets it keep gateways at a git commit, while pods, git, the
// injector and the API server go away and come back. The chart is installed by Helm, the pods are run by kubelets, the
// repository is served by git over HTTPS with a password; only the gateways are simulated.
//
// It runs where STOKER_E2E is set: make e2e sets it.
package e2e

import (
	"os"
	"testing"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// Asked is the environment variable that asks for the tests with pods.
const asked = "STOKER_E2E"

func TestAFleetOnARealCluster(t *testing.T) {
	if os.Getenv(asked) == "" {
		t.Skip("it needs root and takes minutes: make e2e runs it")
	}
	w := newWorld(t)
	t.Run("together", func(t *testing.T) {
		for name, scenario := range sideBySide {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				scenario(t, w)
			})
		}
	})
}

// sideBySide are scenarios that leave the cluster and the injector alone, each in a namespace of its own.
var sideBySide = map[string]func(*testing.T, *world){
	"three gateways start at the commit and follow a push": threeGatewaysFollowAPush,
}
