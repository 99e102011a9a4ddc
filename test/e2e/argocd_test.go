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

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// The manifests and the files of the gateways are in two repositories. A tag selects the version of the
// gateways.
func anApplicationGoesByWaves(t *testing.T, w *world) {
	p := w.plant(t)
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain")
	d.begins(d.repo.Head())
	d.inWaves()
	d.run(p.head())

	scans := func(fault string) {
		for _, pod := range p.pods() {
			p.tell(pod.Name, "/scan-faults", fault)
		}
	}
	scans(`{"kind":"projects","neverEnds":true}`)
	second := p.push("second")
	p.repo.Tag("v2", second)
	revision := d.deployed("v2", ref("v2"))
	d.hangs(revision, forGatewaySync)
	scans(`{"kind":"projects"}`)
	d.ends(revision, "Succeeded")
	d.run(second)

	broken := p.commit("broken", gitserver.Write(inGit, "{"))
	p.repo.Tag("v3", broken)
	app := d.ends(d.deployed("v3", ref("v3")), "Failed")
	d.stopped(app)
	assert.Equal(t, "v2", d.get().Spec.Git.Ref)
	d.run(second)

	mended := p.commit("mended", gitserver.Write(inGit, strings.Replace(p.repo.Content(second, inGit), "{", "{\n  \"mended\": true,", 1)))
	p.repo.Tag("v4", mended)
	d.ends(d.deployed("v4", ref("v4")), "Succeeded")
	d.run(mended)
}

func ref(name string) change {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() == v1alpha1.Kind {
			set(u, name, "spec", "git", "ref")
		}
	}
}

// run checks that the gateways run a commit now, without waiting.
func (d *deployment) run(commit string) {
	d.t.Helper()
	gs := d.get()
	assert.Equal(d.t, "2/2", gs.Status.GatewaysReady, describe(gs))
	d.both(commit)
}

// both checks that both gateways have loaded a commit now. It ignores the status, which counts the
// gateways as behind after each request until they have answered.
func (d *deployment) both(commit string) {
	d.t.Helper()
	pods := d.pods()
	require.Len(d.t, pods, 2)
	for _, pod := range pods {
		d.runs(pod.Name, commit)
	}
}

// inWaves checks the order of a first sync: preflight, the GatewaySync, the gateways, the wait Job.
func (d *deployment) inWaves() {
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
	for _, step := range []struct {
		earlier, later metav1.Time
		what           string
	}{
		{*preflight.Status.CompletionTime, gs.CreationTimestamp, "the preflight ends before the GatewaySync is applied"},
		{gs.CreationTimestamp, gateways.CreationTimestamp, "the GatewaySync is there before its gateways"},
		{gateways.CreationTimestamp, wait.CreationTimestamp, "the gateways are waited for after they were applied"},
	} {
		assert.False(d.t, step.later.Before(&step.earlier), "%s: %s, %s", step.what, step.earlier, step.later)
	}
	for _, pod := range d.pods() {
		d.gated(&pod)
	}
}

// rolledBack waits until the good commit is requested for as long as the ref resolves to the broken one.
// It then checks that the gateways run the good commit.
func (d *deployment) rolledBack(good, broken string) {
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
	d.run(good)
}

// The manifests and the files of the gateways are on one branch of one repository.
func aBrokenCommitIsRolledBack(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("plain", p.repo, p.repoName, "deployment")
	d.begins(p.head())
	first := p.head()
	d.run(first)

	// Argo CD only syncs changed manifests. A commit without one would reach the gateways without running
	// a hook.
	broken := d.commitTo("broken", gitserver.Write(inGit, "{"), gitserver.Files(d.manifests(noted("broken"))))
	app := d.ends(broken, "Failed")
	d.stopped(app)
	d.rolledBack(first, broken)

	view := p.repo.Content(first, inGit)
	mended := d.commitTo("mended", gitserver.Write(inGit, strings.Replace(view, "{", "{\n  \"mended\": true,", 1)), gitserver.Files(d.manifests(noted("mended"))))
	d.ends(mended, "Succeeded")
	d.run(mended)
	gs := d.get()
	assert.Equal(t, mended, gs.Status.Target.Commit)
	assert.Equal(t, "main", gs.Status.Target.Ref, "the branch is followed again, and nobody had to say so")

	d.goBack(mended)
	next := p.head()
	d.run(next)
	assert.Equal(t, "main", d.get().Status.Target.Ref, "the branch is followed again, and nobody had to say so")
}

// Kustomize receives the revision from Argo CD. Every commit is therefore a sync, and the gateways run
// exactly this commit.
func everyCommitIsASync(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("kustomize", p.repo, p.repoName, "kustomize")
	first := p.head()
	d.begins(first)
	d.inWaves()
	d.run(first)
	before := p.uids()

	second := p.push("second")
	d.ends(second, "Succeeded")
	d.run(second)
	assert.Equal(t, second, d.get().Spec.Git.Ref)

	broken := p.commit("broken", gitserver.Write(inGit, "{"))
	app := d.ends(broken, "Failed")
	d.stopped(app)
	assert.Equal(t, second, d.get().Spec.Git.Ref)
	assert.Empty(t, d.get().Annotations[v1alpha1.AnnotationRequestedRef], "there was nothing to go back to")
	d.run(second)

	mended := p.commit("mended", gitserver.Write(inGit, strings.Replace(p.repo.Content(first, inGit), "{", "{\n  \"mended\": true,", 1)))
	d.ends(mended, "Succeeded")
	d.run(mended)
	assert.Equal(t, before, p.uids(), "a commit replaced a pod")
	assert.Zero(t, p.restarts(), "a commit started a gateway again")
}

// stopped checks that a sync ended before it applied anything and that the Job reported the reason.
func (d *deployment) stopped(app *argocd.Application) {
	d.t.Helper()
	assert.Contains(d.t, summary(app), "Job/stoker-preflight Failed")
	d.sees("kubectl logs ", "ConfigSyntaxError: profile default: "+overview+"/view.json:1:2")
	assert.Contains(d.t, d.lastWords("stoker-preflight"), "ConfigSyntaxError: profile default: "+overview+"/view.json:1:2")
}

// lastWords returns the termination message of a failed Job's pod.
func (d *deployment) lastWords(job string) string {
	d.t.Helper()
	pods, err := d.client.CoreV1().Pods(d.namespace).List(d.ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job})
	require.NoError(d.t, err)
	var words strings.Builder
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Terminated != nil {
				words.WriteString(c.State.Terminated.Message)
			}
		}
	}
	return words.String()
}
