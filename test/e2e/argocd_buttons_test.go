//go:build linux

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// line identifies the GatewaySync for the Argo CD API.
func (d *deployment) line() argocd.Resource {
	return argocd.Resource{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Kind: v1alpha1.KindGatewaySync, Namespace: d.namespace, Name: "line"}
}

// offered returns the names of the enabled resource actions.
func (d *deployment) offered() (names []string) {
	d.t.Helper()
	all, err := d.argo.Actions(d.ctx, d.namespace, d.line())
	require.NoError(d.t, err)
	for _, a := range all {
		if !a.Disabled {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (d *deployment) press(action string) {
	d.t.Helper()
	require.NoError(d.t, d.argo.Run(d.ctx, d.namespace, d.line(), action), action)
}

// shows waits until Argo CD reports the given health of the GatewaySync.
func (d *deployment) shows(what string, wanted ...string) {
	d.t.Helper()
	d.eventually(d.t, what, func() string {
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		health, err := d.argo.Health(d.ctx, d.namespace, d.line())
		if err != nil {
			return err.Error()
		}
		return missingFrom(summary(app)+"; "+health, wanted...)
	})
}

// checkResourceActions runs the resource actions that Argo CD offers for a GatewaySync.
func (d *deployment) checkResourceActions() {
	d.t.Helper()
	syncs := len(d.operations())
	assert.Equal(d.t, []string{"force-sync", "pause"}, d.offered())
	d.press("pause")
	d.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonPaused)
	assert.Equal(d.t, []string{"force-sync", "resume"}, d.offered())
	d.shows("a paused GatewaySync is Healthy", "Synced Healthy", "Healthy ", "; paused")
	running := d.head()
	d.push("pushed while it is paused")
	d.requestPoll()
	d.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	for _, pod := range d.pods() {
		d.runs(pod.Name, running)
	}
	d.press("resume")
	d.synced(d.head(), 2)

	d.press("force-sync")
	require.NotEmpty(d.t, d.get().Annotations[v1alpha1.AnnotationForceSync])
	d.eventually(d.t, "the forced sync is handled", func() string {
		gs := d.get() // a sender may have made a request since
		if gs.Status.LastHandledRequest != gs.Annotations[v1alpha1.AnnotationRequestedAt] || !isTrue(gs, v1alpha1.ConditionReady) {
			return describe(gs)
		}
		return ""
	})
	assert.Len(d.t, d.operations(), syncs, "a request of a button must not be drift")
}

// rollBackByAction runs the rollback action while one of two gateways runs a newer commit. Another sync then
// delivers the next commit without any further request.
func (d *deployment) rollBackByAction(good string) {
	d.t.Helper()
	d.mu.Lock()
	d.requestsOlder = true
	d.mu.Unlock()
	syncs := len(d.operations())
	assert.NotContains(d.t, d.offered(), "rollback", "without a good commit, rollback must not be offered")
	d.tell("line-1", "/scan-faults", `{"kind":"projects","neverEnds":true}`)
	bad := d.push("a bad commit")
	d.press("force-sync") // also polls git; no manifest has changed, so Argo CD does not sync
	d.loads("line-0", bad)
	d.eventually(d.t, "the rollback is offered", func() string {
		return missingFrom(strings.Join(d.offered(), " "), "rollback")
	})
	d.sees("argocd app actions run ")
	d.loads("line-0", good)
	d.tell("line-1", "/scan-faults", `{"kind":"projects"}`)
	d.waitForRollback(good, bad)
	gs := d.get()
	assert.Equal(d.t, "argocd", gs.Annotations[v1alpha1.AnnotationRequestedBy])
	assert.Equal(d.t, "main", gs.Spec.Git.Ref, "a button must not change the spec")
	d.shows("Argo CD shows the commit that is blocked", "Synced Healthy", "Healthy rolled back: "+short7(bad)+" of main is blocked")
	assert.NotContains(d.t, d.offered(), "rollback", "rollback must not be offered for the running commit")
	assert.Len(d.t, d.operations(), syncs, "a request of a button must not be drift")

	d.push("what they wanted")
	d.waitForSync(d.commitTo("a note", gitserver.Files(d.manifests(withNote("after the rollback")))), "Succeeded")
}

// The gateway line (pod line-0) is a canary, and line-1 follows when a user approves it. Argo CD shows that a user has to act, and its sync
// waits for the approval.
func stagesHoldASync(t *testing.T, w *world) {
	p := w.plant(t)
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain", inStages)
	d.waitForFirstSync(d.repo.Head())
	first := p.head()
	d.checkRuns(first)

	second := p.push("second")
	p.repo.Tag("v2", second)
	d.isHeld(d.commitManifests("v2", inStages, withRef("v2")), first, second)
	d.press("approve")
	d.waitForSync(d.repo.Head(), "Succeeded")
	d.checkRuns(second)
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

// inStages adds a canary and an approval.
func inStages(u *unstructured.Unstructured) {
	if u.GetKind() == v1alpha1.KindGatewaySync {
		set(u, []any{
			map[string]any{"name": "canary", "gateways": []any{"line"}},
			map[string]any{"name": "prod", "gateways": []any{"line-1"}, "requireApproval": true},
		}, "spec", "deployment", "stages")
	}
}
