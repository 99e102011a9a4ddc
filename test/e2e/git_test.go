//go:build linux

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// gitAway cuts every connection to the plant's repository until back is called.
func (p *plant) gitAway() (back func()) { return p.git.Inject(gitserver.Truncate(0).For(p.repoName)) }

func aDeletedPodComesBackWithoutGit(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways()
	p.synced(p.head(), 3)
	back := p.gitAway()
	p.deletePod("line-1")
	p.ready(3)
	p.runs("line-1", p.head())
	assert.Equal(t, "at the start: plant-library site-a", p.atTheStart("line-1"))
	p.push("pushed while nobody can fetch")
	back()
	p.synced(p.head(), 3)
}

func gitAwayIsTold(t *testing.T, w *world) {
	p := w.plant(t)
	back := p.gitAway()
	p.gatewaySync()
	p.gateways(replicas(1))
	p.says(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable)
	back()
	first := p.head()
	p.synced(first, 1)

	back = p.gitAway()
	p.push("pushed while nobody can fetch")
	p.says(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable)
	p.runs("line-0", first)
	gs := p.get()
	require.NotNil(t, gs.Status.LastGood)
	assert.Equal(t, first, gs.Status.LastGood.Commit)
	assert.Contains(t, condition(gs, v1alpha1.ConditionRefResolved).Message, p.repoName)
	back()
	p.synced(p.head(), 1)
}

// says waits until a condition has the given status and reason.
func (p *plant) says(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason) {
	p.t.Helper()
	p.eventually(p.t, kind+" is "+string(status)+", "+string(reason), func() string {
		gs, err := p.syncs().Get(p.ctx, "line")
		if err != nil {
			return err.Error()
		}
		if c := condition(gs, kind); c != nil && c.Status == status && c.Reason == string(reason) && c.ObservedGeneration == gs.Generation {
			return ""
		}
		return describe(gs)
	})
}

func aWrongSecretIsTold(t *testing.T, w *world) {
	p := w.plant(t)
	p.password = "wrong-" + secretValue()
	p.replaceSecret("git-credentials", "token", p.password)
	p.gatewaySync()
	p.gateways(replicas(1))
	p.says(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	p.eventually(t, "describe tells why", func() string {
		said := p.kubectl(t, "describe", "gs", "line", "--namespace", p.namespace)
		return missingFrom(said, "Reason:                AuthFailed", "RefResolutionFailed", "Warning", p.repoName)
	})
	p.ready(1) // the sync waits for a fix, but the gateway starts
	p.replaceSecret("git-credentials", "token", w.password)
	p.synced(p.head(), 1)
}
