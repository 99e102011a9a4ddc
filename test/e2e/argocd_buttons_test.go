//go:build linux

package e2e

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/document"
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

// shows waits until the summary of the Application and the health of the GatewaySync contain the wanted texts.
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
	require.False(d.t, app.Status.OperationState.Over(), "the sync must wait: %s", summary(app))
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

// page is the document with the commands of these tests.
const page = "docs/how-to/argocd.md"

// On this page the Application and its GatewaySync are called line, and the namespace plant.
var (
	application = regexp.MustCompile(`\b(application|terminate-op|actions run) line\b`)
	namespace   = regexp.MustCompile(`(--namespace) plant\b`)
)

// types runs the command of the page that starts with begin and returns its output. It replaces the names
// on the page with those of the deployment.
func (d *deployment) types(begin string) (said string, code int) {
	d.t.Helper()
	line := d.lines.Take(d.t, page, begin).Text
	line = application.ReplaceAllString(line, "$1 "+d.namespace)
	line = namespace.ReplaceAllString(line, "$1 "+d.namespace)
	if d.shell == nil {
		programs := map[string]string{"kubectl": d.kubectlPath, "stoker": d.stokerPath, "argocd": d.argo.CLI}
		d.shell = document.NewShell(d.t, d.module, programs, "KUBECONFIG="+d.Kubeconfig(), d.argo.Env)
	}
	return d.shell.Try(d.t, line)
}

// sees runs a command, which must succeed, and checks its output.
func (d *deployment) sees(begin string, wanted ...string) {
	d.t.Helper()
	said, code := d.types(begin)
	if missing := missingFrom(said, wanted...); code != 0 || missing != "" {
		d.t.Errorf("%s: exit code %d; %s", begin, code, missing)
	}
}

// serverSide enables server-side apply and the matching diff, as described in docs/how-to/argocd.md.
func serverSide(u *unstructured.Unstructured) {
	if u.GetKind() == "Application" {
		u.SetAnnotations(map[string]string{"argocd.argoproj.io/compare-options": "ServerSideDiff=true"})
		options, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "syncPolicy", "syncOptions")
		if err := unstructured.SetNestedStringSlice(u.Object, append(options, "ServerSideApply=true"), "spec", "syncPolicy", "syncOptions"); err != nil {
			panic(err)
		}
	}
}
