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

// cutGit cuts every connection to the plant's repository until restore is called.
func (p *plant) cutGit() (restore func()) { return p.git.Inject(gitserver.Truncate(0).For(p.repoName)) }

// While git is unreachable, a new pod of a gateway starts with the commit on its volume.
func podStartsWithoutGit(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways()
	p.synced(p.head(), 3)
	restore := p.cutGit()
	p.deletePod("line-1")
	p.ready(3)
	p.runs("line-1", p.head())
	assert.Equal(t, "at the start: plant-library site-a", p.projectsAtStart("line-1"))
	p.push("pushed while git is unreachable")
	restore()
	p.synced(p.head(), 3)
}

// If git is unreachable, conditions report GitUnreachable, and the gateways keep the last good commit. When git is back, they follow it.
func unreachableGitIsReported(t *testing.T, w *world) {
	p := w.plant(t)
	restore := p.cutGit()
	p.gatewaySync()
	p.gateways(replicas(1))
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable)
	restore()
	first := p.head()
	p.synced(first, 1)

	restore = p.cutGit()
	p.push("pushed while git is unreachable")
	p.waitForCondition(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, v1alpha1.ReasonGitUnreachable)
	p.runs("line-0", first)
	gs := p.get()
	require.NotNil(t, gs.Status.LastGood)
	assert.Equal(t, first, gs.Status.LastGood.Commit)
	assert.Contains(t, condition(gs, v1alpha1.ConditionRefResolved).Message, p.repoName)
	restore()
	p.synced(p.head(), 1)
}

// waitForCondition waits until a condition has the given status and reason for the current spec.
func (p *plant) waitForCondition(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason) {
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

// A wrong git password is reported as AuthFailed, also by kubectl describe, and does not keep the gateway from starting.
func wrongSecretIsReported(t *testing.T, w *world) {
	p := w.plant(t)
	p.password = "wrong-" + randomSecret()
	p.replaceSecret("git-credentials", "token", p.password)
	p.gatewaySync()
	p.gateways(replicas(1))
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	p.eventually(t, "kubectl describe shows the reason", func() string {
		described := p.kubectl(t, "describe", "gs", "line", "--namespace", p.namespace)
		return missingFrom(described, "Reason:                AuthFailed", "RefResolutionFailed", "Warning", p.repoName)
	})
	p.ready(1) // the sync waits for the right password, but the gateway starts
	p.replaceSecret("git-credentials", "token", w.password)
	p.synced(p.head(), 1)
}
