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
	"stoker.io/stoker/test/document"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// asked is the environment variable that asks for the tests with pods. The value "logs" shows what is known of each scenario
// at its end, as after a failure.
const asked = "STOKER_E2E"

func TestAFleetOnARealCluster(t *testing.T) {
	if os.Getenv(asked) == "" {
		t.Skip("it needs root and takes minutes: make e2e runs it")
	}
	lines := document.Open(t)
	w := newWorld(t, lines)
	t.Run("side by side", func(t *testing.T) {
		for _, s := range withArgoCD {
			t.Run(s.outcome, func(t *testing.T) {
				w.argo.goesFirst(t)
				t.Parallel()
				s.play(t, w)
			})
		}
		for _, s := range laterWithArgoCD {
			t.Run(s.outcome, func(t *testing.T) {
				t.Parallel()
				s.play(t, w)
			})
		}
		slots := make(chan struct{}, atOnce)
		for _, s := range sideBySide {
			t.Run(s.outcome, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
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

// atOnce is how many scenarios run at a time, beside those of Argo CD. Those take minutes, mostly of waiting, and start first.
const atOnce = 5

// withArgoCD are scenarios of deployments that the real Argo CD syncs.
var withArgoCD = []scenario{
	{"Argo CD heals and leaves requests alone", selfHealLeavesRequestsAlone},
	{"Argo CD goes by waves, and each revision ends when the gateways run it", anApplicationGoesByWaves},
	{"Argo CD hands down the revision: every commit is a sync of its own", everyCommitIsASync},
	{"Argo CD and a broken commit: the last good one comes back, and the next one counts", aBrokenCommitIsRolledBack},
}

// laterWithArgoCD are more of them, which are short: their gateways start when those of the others have started.
var laterWithArgoCD = []scenario{
	{"Argo CD and gateways that cannot start: the commit that mends them is synced once the sync is terminated", aCommitMendsGatewaysThatCannotStart},
	{"Argo CD hands a chart the revision: gateways that cannot start are mended alone", aChartsGatewaysAreMendedAlone},
	{"Argo CD and a branch in the spec: the commit that is synced is asked for", theCommitOfASyncIsAskedFor},
	{"Argo CD impersonates an account that may patch and not update: it is a setter", anImpersonatedAccountIsASetter},
}

// sideBySide are scenarios that leave the cluster and the injector alone, each in a namespace of its own.
var sideBySide = []scenario{
	{"three gateways start at the commit and follow a push", threeGatewaysFollowAPush},
	{"what the documents show of nodes is typed as it stands there", whatTheDocumentsShowIsTyped},
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

// alone are scenarios that stop what all others need. The API server is the last: Kubernetes itself takes a while to get over it.
var alone = []scenario{
	{"pods that started while the injector was away are repaired", podsWithoutInjectorAreRepaired},
	{"an API server that dies and comes back changes nothing", theAPIServerComesBack},
}
