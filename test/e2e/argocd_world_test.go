//go:build linux

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// argoCD is the installation that all scenarios share. It starts while other scenarios already run.
type argoCD struct {
	*argocd.ArgoCD
	err  error
	done chan struct{} // closed when it has started or failed to start

	first sync.WaitGroup    // deployments that do not wait for others
	begun map[string]func() // by the name of the test, for the deployments in first
}

// goesFirst marks the deployment of a test as one that does not wait for others. It must be called before
// the tests run in parallel.
func (a *argoCD) goesFirst(t *testing.T) {
	a.first.Add(1)
	done := sync.OnceFunc(a.first.Done)
	a.begun[t.Name()] = done
	t.Cleanup(done)
}

// markStarted records that the first sync of the test's deployment is done. From now on the test mostly
// waits.
func (a *argoCD) markStarted(t *testing.T) {
	if done, first := a.begun[t.Name()]; first {
		done()
	}
}

// waitForTurn waits until the deployments marked by goesFirst have started, unless the test's own is one of them.
// Pods that all start at once slow each other down.
func (a *argoCD) waitForTurn(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, first := a.begun[t.Name()]; first {
		return
	}
	all := make(chan struct{})
	go func() {
		a.first.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatalf("other deployments did not start: %v", context.Cause(ctx))
	}
}

// argoCDMajor returns the major version of Argo CD to run: 2 or 3 from the environment variable
// STOKER_ARGOCD, 3 by default.
func argoCDMajor() string { return cmp.Or(os.Getenv("STOKER_ARGOCD"), "3") }

// startArgoCD starts Argo CD in the background. If it is not built yet, the build keeps both cores busy
// for minutes and runs first.
func (w *world) startArgoCD(t *testing.T) {
	w.say("Argo CD")
	programs, err := w.cache.ArgoCD(w.ctx, argoCDMajor())
	require.NoError(t, err)
	kustomize, err := w.cache.Kustomize(w.ctx)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "argocd-") // short enough for the name of a socket
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.argo = &argoCD{done: make(chan struct{}), begun: map[string]func(){}}
	go func() {
		defer close(w.argo.done)
		w.argo.ArgoCD, w.argo.err = w.runArgoCD(ctx, programs, kustomize, dir)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.argo.done
		if w.argo.ArgoCD != nil {
			if t.Failed() || os.Getenv(envE2E) == "logs" {
				for name, said := range w.argo.Logs() {
					t.Logf("%s:\n%s", name, said)
				}
				w.dump(t, argocd.Namespace)
			}
			assert.NoError(t, w.argo.Close())
		}
		require.NoError(t, os.RemoveAll(dir))
	})
}

func (w *world) runArgoCD(ctx context.Context, programs, kustomize, dir string) (*argocd.ArgoCD, error) {
	if err := w.Install(ctx, filepath.Join(programs, "crds")); err != nil {
		return nil, err
	}
	server, err := url.Parse(w.git.URL(""))
	if err != nil {
		return nil, err
	}
	var repoServer []string
	if argoCDMajor() != "2" {
		repoServer = []string{"--client-ca-path="} // the default path is refused without TLS, even if the file does not exist
	}
	a, err := argocd.Start(ctx, argocd.Options{
		Programs: programs, RepoServer: repoServer, Tools: []string{filepath.Dir(w.kubectlPath), filepath.Dir(kustomize), filepath.Dir(w.helmPath)}, Kubeconfig: w.Kubeconfig(), Dir: dir, Progress: os.Stderr,
		Authorities: map[string][]byte{server.Hostname(): w.git.CA()},
	})
	if err != nil {
		return nil, err
	}
	// The token that the notifications send, as described in docs/how-to/webhooks.md.
	if err := a.Secret(ctx, argocd.NotificationsSecret, map[string]string{"stoker-token": w.webhookToken}); err != nil {
		return a, err
	}
	// Health and actions of a GatewaySync, and the notifications, as described in docs/how-to/argocd.md.
	for _, name := range []string{argocd.ConfigMap, argocd.NotificationsConfigMap} {
		if err := w.patchArgoCD(ctx, name); err != nil {
			return a, err
		}
	}
	if argoCDMajor() != "2" {
		// AppProjects that do not name an account keep the rights of Argo CD.
		patch := []byte(`{"data":{"application.sync.impersonation.enabled":"true","application.sync.impersonation.enforced":"false"}}`)
		_, err := w.client.CoreV1().ConfigMaps(argocd.Namespace).Patch(ctx, argocd.ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return a, err
		}
	}
	w.say("Argo CD has started")
	return a, a.Repository(ctx, "git", w.git.URL(""), gitUser, w.password)
}

// patchArgoCD applies the chart's patch to a ConfigMap of Argo CD.
func (w *world) patchArgoCD(ctx context.Context, name string) error {
	content, err := os.ReadFile(filepath.Join(w.module, "charts", "stoker", "files", "argocd", name+".yaml"))
	if err != nil {
		return err
	}
	// Argo CD does not run in a pod here, so it cannot resolve the names of Services.
	receiver, err := w.receiverAddress(ctx)
	if err != nil {
		return err
	}
	patch, err := yaml.YAMLToJSON(bytes.ReplaceAll(content, []byte("http://stoker-receiver.stoker-system.svc:9444"), []byte(receiver)))
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().ConfigMaps(argocd.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// argocd waits until Argo CD has started.
func (w *world) argocd(t *testing.T) *argoCD {
	t.Helper()
	select {
	case <-w.argo.done:
	case <-time.After(liveness):
		t.Fatalf("Argo CD has not started within %s", liveness)
	}
	if errors.Is(w.argo.err, argocd.ErrNoRedis) {
		t.Skip(w.argo.err)
	}
	require.NoError(t, w.argo.err)
	return w.argo
}

// states holds every observed state of an object in order.
type states[T any] struct {
	mu   sync.Mutex
	seen []*T
}

func (s *states[T]) all() []*T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// distinctStates lists the states of an Application without repetitions.
func distinctStates(all []*argocd.Application) string {
	var b strings.Builder
	last := ""
	for _, a := range all {
		line := summary(a)
		if line != last {
			b.WriteString("\n  " + line)
		}
		last = line
	}
	return b.String()
}

func summary(a *argocd.Application) string {
	line := a.Status.Sync.Status + " " + a.Status.Health.Status
	if o := a.Status.OperationState; o != nil {
		line += "; " + o.Phase + " of " + short7(o.SyncResult.Revision) + ": " + o.Message
		for _, r := range o.SyncResult.Resources {
			if r.HookPhase != "" && r.HookPhase != "Succeeded" {
				line += "; " + r.Kind + "/" + r.Name + " " + r.HookPhase + " " + r.Message
			}
		}
	}
	for _, c := range a.Status.Conditions {
		line += "; " + c.Type + ": " + c.Message
	}
	return line
}

func short7(commit string) string { return commit[:min(len(commit), 7)] }

// receiver returns an address of the receiver that this machine can reach.
func (w *world) receiver(t *testing.T) string {
	t.Helper()
	address, err := w.receiverAddress(w.ctx)
	require.NoError(t, err)
	return address
}

// receiverAddress waits for the Service, because the chart may still be installing.
func (w *world) receiverAddress(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, liveness)
	defer cancel()
	var service *corev1.Service
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (_ bool, err error) {
		service, err = w.client.CoreV1().Services(release).Get(ctx, "stoker-receiver", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return "", err
	}
	return "http://" + net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port))), nil
}

// The manifests and the files of the gateways are in two repositories. From v2 on, spec.git.ref is a tag, which selects
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
// fails, and the SyncFail hook rolls the gateways back. When a commit fixes the branch, they follow it again.
// They also do so after a rollback by the resource action.
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
