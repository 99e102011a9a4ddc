//go:build linux

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// The manifests and the files of the gateways are in two repositories. spec.git.ref is a tag, which selects
// the version of the gateways.
//
// The first sync applies its waves in order. While the scans of v2 do not end, the sync waits for the
// GatewaySync. v3 is broken, so its sync fails before it applies anything. v4 is fixed and synced.
func applicationSyncsInWaves(t *testing.T, w *world) {
	p := w.plant(t)
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain")
	d.waitForFirstSync(d.repo.Head())
	d.checkWaves()
	d.checkRuns(p.head())

	setScans := func(fault string) {
		for _, pod := range p.pods() {
			p.tell(pod.Name, "/scan-faults", fault)
		}
	}
	setScans(`{"kind":"projects","neverEnds":true}`)
	second := p.push("second")
	p.repo.Tag("v2", second)
	revision := d.commitManifests("v2", withRef("v2"))
	d.waitUntilHangs(revision, forGatewaySync)
	setScans(`{"kind":"projects"}`)
	d.waitForSync(revision, "Succeeded")
	d.checkRuns(second)

	broken := p.commit("broken", gitserver.Write(inGit, "{"))
	p.repo.Tag("v3", broken)
	app := d.waitForSync(d.commitManifests("v3", withRef("v3")), "Failed")
	d.checkPreflightFailed(app)
	assert.Equal(t, "v2", d.get().Spec.Git.Ref)
	d.checkRuns(second)

	fixed := p.commit("fixed", gitserver.Write(inGit, strings.Replace(p.repo.Content(second, inGit), "{", "{\n  \"fixed\": true,", 1)))
	p.repo.Tag("v4", fixed)
	d.waitForSync(d.commitManifests("v4", withRef("v4")), "Succeeded")
	d.checkRuns(fixed)
}

// withRef sets spec.git.ref of the GatewaySync.
func withRef(name string) change {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() == v1alpha1.KindGatewaySync {
			set(u, name, "spec", "git", "ref")
		}
	}
}

// checkRuns checks that both gateways run a commit now, according to the status and to the gateways.
func (d *deployment) checkRuns(commit string) {
	d.t.Helper()
	gs := d.get()
	assert.Equal(d.t, "2/2", gs.Status.GatewaysReady, describe(gs))
	d.checkLoaded(commit)
}

// checkLoaded checks that both gateways have loaded a commit now. It ignores the status, which counts the
// gateways as behind after each request until they have reported.
func (d *deployment) checkLoaded(commit string) {
	d.t.Helper()
	pods := d.pods()
	require.Len(d.t, pods, 2)
	for _, pod := range pods {
		d.runs(pod.Name, commit)
	}
}

// checkWaves checks the order of a first sync: the preflight Job, the GatewaySync, the gateways, the wait Job.
func (d *deployment) checkWaves() {
	d.t.Helper()
	job := func(name string) *batchv1.Job {
		job, err := d.client.BatchV1().Jobs(d.namespace).Get(d.ctx, name, metav1.GetOptions{})
		require.NoError(d.t, err)
		require.NotNil(d.t, job.Status.CompletionTime, name)
		return job
	}
	preflight, wait, gs := job("stoker-preflight"), job("stoker-wait"), d.get()
	gateways, err := d.client.AppsV1().StatefulSets(d.namespace).Get(d.ctx, "line", metav1.GetOptions{})
	require.NoError(d.t, err)
	for _, order := range []struct {
		earlier, later metav1.Time
		what           string
	}{
		{*preflight.Status.CompletionTime, gs.CreationTimestamp, "the preflight must end before the GatewaySync is applied"},
		{gs.CreationTimestamp, gateways.CreationTimestamp, "the GatewaySync must be created before its gateways"},
		{gateways.CreationTimestamp, wait.CreationTimestamp, "the wait Job must be created after the gateways"},
	} {
		assert.False(d.t, order.later.Before(&order.earlier), "%s: %s, %s", order.what, order.earlier, order.later)
	}
	for _, pod := range d.pods() {
		d.gated(&pod)
	}
}

// waitForRollback waits until a request for the good commit is in force, which applies only while
// spec.git.ref resolves to the broken commit. It then checks that the gateways run the good commit.
func (d *deployment) waitForRollback(good, broken string) {
	d.t.Helper()
	d.eventually(d.t, "rolled back to "+short7(good), func() string {
		gs := d.get()
		switch {
		case gs.Annotations[v1alpha1.AnnotationRequestedUnless] != broken:
			return "requested-unless is " + gs.Annotations[v1alpha1.AnnotationRequestedUnless] + "; " + describe(gs)
		case gs.Status.Target == nil || gs.Status.Target.Commit != good || !isTrue(gs, v1alpha1.ConditionReady):
			return describe(gs)
		}
		return ""
	})
	d.checkRuns(good)
}

// The manifests and the files of the gateways are on one branch of one repository. A sync with a broken commit
// fails, and the SyncFail hook rolls the gateways back. When a commit fixes the branch, they follow it again. So
// they do after a rollback by the resource action.
func brokenCommitIsRolledBack(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("plain", p.repo, p.repoName, "deployment")
	d.waitForFirstSync(p.head())
	first := p.head()
	d.checkRuns(first)

	// Argo CD only syncs if a manifest has changed. So the commit also changes a manifest; otherwise the
	// gateways would get it without a hook.
	broken := d.commitTo("broken", gitserver.Write(inGit, "{"), gitserver.Files(d.manifests(withNote("broken"))))
	app := d.waitForSync(broken, "Failed")
	d.checkPreflightFailed(app)
	d.waitForRollback(first, broken)

	view := p.repo.Content(first, inGit)
	fixed := d.commitTo("fixed", gitserver.Write(inGit, strings.Replace(view, "{", "{\n  \"fixed\": true,", 1)), gitserver.Files(d.manifests(withNote("fixed"))))
	d.waitForSync(fixed, "Succeeded")
	d.checkRuns(fixed)
	gs := d.get()
	assert.Equal(t, fixed, gs.Status.Target.Commit)
	assert.Equal(t, "main", gs.Status.Target.Ref, "the branch must be followed again, without a request")

	d.rollBackByAction(fixed)
	next := p.head()
	d.checkRuns(next)
	assert.Equal(t, "main", d.get().Status.Target.Ref, "the branch must be followed again, without a request")
}

// Kustomize sets spec.git.ref to the revision that Argo CD syncs. So every commit causes a sync, and the
// gateways run exactly this commit. A broken commit fails before it is applied, so nothing is rolled back.
func everyCommitIsSynced(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("kustomize", p.repo, p.repoName, "kustomize")
	first := p.head()
	d.waitForFirstSync(first)
	d.checkWaves()
	d.checkRuns(first)
	before := p.uids()

	second := p.push("second")
	d.waitForSync(second, "Succeeded")
	d.checkRuns(second)
	assert.Equal(t, second, d.get().Spec.Git.Ref)

	broken := p.commit("broken", gitserver.Write(inGit, "{"))
	app := d.waitForSync(broken, "Failed")
	d.checkPreflightFailed(app)
	assert.Equal(t, second, d.get().Spec.Git.Ref)
	assert.Empty(t, d.get().Annotations[v1alpha1.AnnotationRequestedRef], "no rollback may be requested")
	d.checkRuns(second)

	fixed := p.commit("fixed", gitserver.Write(inGit, strings.Replace(p.repo.Content(first, inGit), "{", "{\n  \"fixed\": true,", 1)))
	d.waitForSync(fixed, "Succeeded")
	d.checkRuns(fixed)
	assert.Equal(t, before, p.uids(), "a commit must not replace a pod")
	assert.Zero(t, p.restarts(), "a commit must not restart a container")
}

// checkPreflightFailed checks that the preflight Job ended a sync, and that its log and its termination
// message name the reason.
func (d *deployment) checkPreflightFailed(app *argocd.Application) {
	d.t.Helper()
	assert.Contains(d.t, summary(app), "Job/stoker-preflight Failed")
	d.sees("kubectl logs ", "ConfigSyntaxError: profile default: "+overview+"/view.json:1:2")
	assert.Contains(d.t, d.terminationMessage("stoker-preflight"), "ConfigSyntaxError: profile default: "+overview+"/view.json:1:2")
}

// terminationMessage returns the termination messages of a Job's pods.
func (d *deployment) terminationMessage(job string) string {
	d.t.Helper()
	pods, err := d.client.CoreV1().Pods(d.namespace).List(d.ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job})
	require.NoError(d.t, err)
	var messages strings.Builder
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Terminated != nil {
				messages.WriteString(c.State.Terminated.Message)
			}
		}
	}
	return messages.String()
}

// uids returns the UIDs of the pods, which differ after a pod was replaced.
func (p *plant) uids() (all []types.UID) {
	p.t.Helper()
	for _, pod := range p.pods() {
		all = append(all, pod.UID)
	}
	return all
}
