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

// asked is the environment variable that asks for the tests with pods. The value "logs" shows what is known of each scenario
// at its end, as after a failure.
const asked = "STOKER_E2E"

func TestAFleetOnARealCluster(t *testing.T) {
	if os.Getenv(asked) == "" {
		t.Skip("it needs root and takes minutes: make e2e runs it")
	}
	w := newWorld(t)
	t.Run("side by side", func(t *testing.T) {
		for _, s := range sideBySide {
			t.Run(s.outcome, func(t *testing.T) {
				t.Parallel()
				s.play(t, w)
			})
		}
	})
	for _, s := range alone {
		t.Run(s.outcome, func(t *testing.T) { s.play(t, w) })
	}
}

type scenario struct {
	outcome string
	play    func(*testing.T, *world)
}

// sideBySide are scenarios that leave the cluster and the injector alone, each in a namespace of its own.
var sideBySide = []scenario{
	{"three gateways start at the commit and follow a push", threeGatewaysFollowAPush},
	{"a gateway that seeds its volume itself is synced when it runs", anUnseededGatewayIsSynced},
	{"a deleted pod comes back without git", aDeletedPodComesBackWithoutGit},
	{"git away is told, the last good commit stays, and it goes on", gitAwayIsTold},
	{"a lead that is killed amid a sync is replaced, and all converge", aKilledLeadIsReplaced},
	{"gateways before their GatewaySync are repaired", gatewaysBeforeTheirGatewaySync},
	{"a wrong secret is told by describe, and the right one counts", aWrongSecretIsTold},
	{"a GatewaySync that is deleted leaves the gateways as they are", aDeletedGatewaySyncLeavesGateways},
	{"two releases of the official chart are two gateways", twoReleasesAreTwoGateways},
	{"a redundant pair is synced, its backup on standby", aPairIsSynced},
	{"a pod that requires its agent is refused without a GatewaySync", aPodThatRequiresItsAgent},
}

// alone are scenarios that stop what all others need.
var alone = []scenario{
	{"an API server that dies and comes back changes nothing", theAPIServerComesBack},
	{"pods that started while the injector was away are repaired", podsWithoutInjectorAreRepaired},
}
