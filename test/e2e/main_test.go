//go:build linux

// Package e2e tests Stoker on a real Kubernetes cluster with nodes. Stoker keeps gateways at a git commit
// while pods, git, the injector and the API server fail and recover. Helm installs a release of this checkout from a registry, kubelets
// run the pods, and git serves the repository over HTTPS with a password. Only the gateways are simulated.
//
// The tests run only if STOKER_E2E is set, as make e2e does.
package e2e

import (
	"os"
	"testing"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// envE2E is the environment variable that enables the tests with pods: "all" for all scenarios, "some" for those that make e2e E2E= selects,
// without the checks of the whole run, and "logs" to end each scenario with the diagnostics of a failure.
const envE2E = "STOKER_E2E"

func TestFleetOnCluster(t *testing.T) {
	if os.Getenv(envE2E) == "" {
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

// atOnce is the number of scenarios that run at a time, besides those with Argo CD. The latter mostly
// wait and take minutes.
const atOnce = 5

// withArgoCD lists scenarios with deployments that a real Argo CD syncs.
var withArgoCD = []scenario{
	{"Argo CD self-heals the spec and does not revert requests", selfHealKeepsRequests},
	{"Argo CD applies waves, and a sync ends when the gateways run its revision", applicationSyncsInWaves},
	{"Argo CD passes the revision on: every commit is a sync", everyCommitIsSynced},
	{"Argo CD and a broken commit: it is rolled back, and the next commit is synced", brokenCommitIsRolledBack},
}

// laterWithArgoCD lists shorter scenarios. Their gateways start after those of withArgoCD.
var laterWithArgoCD = []scenario{
	{"Argo CD and gateways that cannot start: the commit that fixes them is synced once the sync is terminated", aCommitFixesGatewaysThatCannotStart},
	{"Argo CD hands a chart the revision: gateways that cannot start are fixed alone", aChartsGatewaysAreFixedAlone},
	{"Argo CD and a branch in the spec: the synced commit is requested", theCommitOfASyncIsAskedFor},
	{"Argo CD and a ConfigSync: a wave waits until its objects are applied", aWaveWaitsForAConfigSync},
	{"Argo CD and stages: a sync waits for an approval", stagesHoldASync},
	{"Argo CD impersonates an account that may patch but not update: it is a setter", anImpersonatedAccountIsASetter},
}

// sideBySide lists scenarios that do not disturb the cluster or the injector. Each has its own namespace.
var sideBySide = []scenario{
	{"three gateways start at the commit and follow a push", threeGatewaysFollowAPush},
	{"commands of the documents that need nodes work", documentedNodeCommands},
	{"a gateway that seeds its volume itself is synced when it runs", anUnseededGatewayIsSynced},
	{"gateways that started before their GatewaySync existed are repaired", gatewaysOlderThanGatewaySync},
	{"a deleted GatewaySync does not change the gateways", deletedGatewaySyncLeavesGateways},
	{"two releases of the official chart are two gateways", twoReleasesAreTwoGateways},
	{"a redundant pair is synced, its backup on standby", aPairIsSynced},
	{"a pod that requires its agent is refused without a GatewaySync; a corrected Secret is used", podThatRequiresAgent},
	{"a ConfigSync and its gateway take environment and scripts from one commit", environmentAndScriptFromOneCommit},
	{"a ConfigSync that deletes its objects does not hold its namespace", aNamespaceGoesWithItsConfigSync},
}

// alone lists scenarios that stop shared components. The API server comes late, because Kubernetes takes a
// while to recover, and the uninstall last.
var alone = []scenario{
	{"pods that started without the injector are repaired", podsStartedWithoutInjector},
	{"an upgrade to the next release, and the way back", anUpgradeAndTheWayBack},
	{"a restart of the API server changes nothing", apiServerRestarts},
	{"after an uninstall, deleting a ConfigSync leaves its objects", anUninstallLeavesWhatIsNotDeleted},
}
