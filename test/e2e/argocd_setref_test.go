//go:build linux

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// The spec names a branch and a hook requests the synced commit. The gateways run this commit from the
// first sync on, wherever the branch points.
func theCommitOfASyncIsAskedFor(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("plain+set-ref.yaml", p.repo, p.repoName, "deployment", p.looksAtItsCommit, serverSide)
	first := p.head()
	d.waitForFirstSync(first)
	d.asksFor(first)

	p.push("not synced")
	d.press("force-sync") // also polls git
	d.eventually(t, "git is polled", func() string {
		gs := d.get()
		if gs.Status.LastHandledRequest != gs.Annotations[v1alpha1.AnnotationRequestedAt] || !isTrue(gs, v1alpha1.ConditionReady) {
			return describe(gs)
		}
		return ""
	})
	d.asksFor(first)

	const deadline = "19m" // an administrator sets this field, and git does not mention it
	_, err := d.syncs().Patch(d.ctx, "line", types.MergePatchType, []byte(`{"spec":{"progressDeadline":"`+deadline+`"}}`), metav1.PatchOptions{FieldManager: "administrator"})
	require.NoError(t, err)
	second := d.commitTo("a note", gitserver.Files(d.manifests(p.looksAtItsCommit, withNote("second"), slower)))
	app := d.waitForSync(second, "Succeeded")
	assert.Contains(t, applied(app), "GatewaySync/line")
	assert.Equal(t, deadline, d.get().Spec.ProgressDeadline, "Argo CD must keep fields of other managers")
	d.shows("fields of other managers are not a difference", "Synced Healthy")
	assert.Contains(t, hooks(app), "Role/stoker-hooks-line", "the rights of the preflight must be applied first")
	d.asksFor(second)
}

// slower changes a field of the GatewaySync that does not affect this test.
func slower(u *unstructured.Unstructured) {
	if u.GetKind() == v1alpha1.KindGatewaySync {
		set(u, int64(6), "spec", "sync", "defaults", "syncPeriod")
	}
}

// asksFor checks that a commit is requested by its ID and that the gateways run it.
func (d *deployment) asksFor(commit string) {
	d.t.Helper()
	gs := d.get()
	assert.Equal(d.t, "main", gs.Spec.Git.Ref)
	assert.Equal(d.t, commit, gs.Annotations[v1alpha1.AnnotationRequestedRef])
	assert.Equal(d.t, commit, gs.Status.Target.Ref)
	d.checkRuns(commit)
}

// looksAtItsCommit changes the preflight Job as described in set-ref.yaml.
func (p *plant) looksAtItsCommit(u *unstructured.Unstructured) {
	if u.GetName() != "stoker-preflight" || u.GetKind() != "Job" {
		return
	}
	from := func(name, path string) any {
		return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
	}
	for _, c := range list(u.Object, "spec", "template", "spec", "containers") {
		c["args"] = append(c["args"].([]any), "--application", argocd.Namespace+"/"+p.namespace)
		c["env"] = []any{from("POD_NAMESPACE", "metadata.namespace"), from("JOB_NAME", "metadata.labels['batch.kubernetes.io/job-name']")}
	}
}
