//go:build linux

package e2e

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// The gateway line (pod line-0) is a canary, and line-1 follows when a user approves it. Argo CD shows that a user has to act, and its sync
// waits for the approval. The canary of v3 fails its health check: the sync fails, Argo CD shows Degraded, and the canary keeps the commit
// for inspection. v4 is approved again.
func stagesHoldASync(t *testing.T, w *world) {
	p := w.plant(t)
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain", inStages(""))
	d.waitForFirstSync(d.repo.Head())
	first := p.head()
	d.checkRuns(first)

	second := p.push("second")
	p.repo.Tag("v2", second)
	d.isHeld(d.commitManifests("v2", inStages(""), withRef("v2")), first, second)
	d.press("approve")
	d.waitForSync(d.repo.Head(), "Succeeded")
	d.checkRuns(second)

	third := p.push("third")
	p.repo.Tag("v3", third)
	d.waitForSync(d.commitManifests("v3", inStages(p.git.URL("no-such-page")), withRef("v3")), "Failed")
	assert.True(t, slices.ContainsFunc(d.applications.all(), func(a *argocd.Application) bool { return a.Status.Health.Status == "Degraded" }),
		"Argo CD must show the failed canary:%s", distinctStates(d.applications.all()))
	assert.True(t, slices.ContainsFunc(d.gatewaySyncs.all(), func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Outcome != nil && gs.Status.Outcome.Reason == v1alpha1.ReasonCanaryStageFailed
	}), "the canary must fail")
	d.loads("line-0", third)
	d.runs("line-1", second)
	assert.Empty(t, d.get().Annotations[v1alpha1.AnnotationRequestedRef], "the canary must stay for inspection")

	fourth := p.push("fourth")
	p.repo.Tag("v4", fourth)
	d.isHeld(d.commitManifests("v4", inStages(""), withRef("v4")), second, fourth)
	d.press("approve")
	d.waitForSync(d.repo.Head(), "Succeeded")
	d.checkRuns(fourth)
}

// isHeld waits until the canary runs a commit and the sync of a revision waits for the approval. The other gateway still runs the old commit.
func (d *deployment) isHeld(revision, old, commit string) {
	d.t.Helper()
	d.waitUntilHangs(revision, forGatewaySync)
	d.shows("Argo CD shows that an approval is needed", "Suspended", "ApprovalNeeded: ", "stage prod")
	d.loads("line-0", commit)
	d.runs("line-1", old)
	assert.Contains(d.t, d.offered(), "approve")
	app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
	require.NoError(d.t, err)
	require.False(d.t, app.Status.OperationState.Over(), "the sync waits: %s", summary(app))
}

// inStages adds a canary, whose health is checked at an address if one is given, and an approval.
func inStages(healthCheck string) change {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() != v1alpha1.Kind {
			return
		}
		canary := map[string]any{"name": "canary", "gateways": []any{"line"}}
		if healthCheck != "" {
			canary["healthCheck"] = map[string]any{"url": healthCheck}
		}
		set(u, []any{canary, map[string]any{"name": "prod", "gateways": []any{"line-1"}, "requireApproval": true}}, "spec", "deployment", "stages")
	}
}
