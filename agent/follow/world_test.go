package follow

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// liveness bounds every wait. A loaded machine needs a tenth of it.
const liveness = 60 * time.Second

const (
	crName   = "site"
	apiToken = "stoker:S3CR3T-api"
)

// world is a namespace of a real API server with a GatewaySync, and a git server. The test plays the lead.
type world struct {
	t       *testing.T
	cluster *kubetest.Cluster
	ns      string
	clients kube.Clients
	git     *gitserver.Server
	repo    *gitserver.Repo
	dir     string
}

func newWorld(t *testing.T, cluster *kubetest.Cluster) *world {
	t.Helper()
	w := &world{t: t, cluster: cluster, ns: cluster.Namespace(t), dir: t.TempDir()}
	var err error
	w.clients, err = kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	root := filepath.Join(w.dir, "git")
	require.NoError(t, os.MkdirAll(root, 0o755))
	w.repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	w.git, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.git.Close()) })
	return w
}

// onSharedCluster returns a world on the cluster that the tests of this package share.
func onSharedCluster(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t, kubetest.Objects(t))
}

const project = `{"title": "%s", "enabled": true, "inheritable": false}`

// commit commits a project for both profiles: with this title for the profile default, and with another one for the profile
// other.
func (w *world) commit(title string) string {
	w.t.Helper()
	return w.repo.Commit(title,
		gitserver.Write("gw/projects/line/project.json", fmt.Sprintf(project, title)),
		gitserver.Write("other/projects/line/project.json", fmt.Sprintf(project, title+" of other")))
}

// gatewaySync creates the GatewaySync of the test, with the port of the gateway of p.
func (w *world) gatewaySync(p *pod, change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	w.t.Helper()
	u, err := url.Parse(p.gw.URL())
	require.NoError(w.t, err)
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(w.t, err)
	number, period := int32(port), int32(5)
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: crName, Namespace: w.ns}}
	gs.Spec.Git = v1alpha1.GitSpec{Repo: w.git.URL("site.git"), Ref: "main"}
	gs.Spec.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: "git", Key: "token"}}}
	gs.Spec.Gateway = v1alpha1.GatewaySpec{Port: &number, API: &v1alpha1.GatewayAPI{SecretName: "gateway"}}
	gs.Spec.Sync.Defaults.SyncPeriod = &period
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{
		"default": {Mappings: []v1alpha1.Mapping{{Source: "gw/projects", Destination: "projects"}}},
		"other":   {Mappings: []v1alpha1.Mapping{{Source: "other/projects", Destination: "projects"}}},
	}
	for _, c := range change {
		c(gs)
	}
	made, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Create(w.t.Context(), gs, metav1.CreateOptions{})
	require.NoError(w.t, err)
	return made
}

// edit changes the GatewaySync.
func (w *world) edit(change func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	w.t.Helper()
	all := kube.GatewaySyncs(w.clients.Dynamic, w.ns)
	var gs *v1alpha1.GatewaySync
	// A lead may write the status concurrently.
	require.NoError(w.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		is, err := all.Get(w.t.Context(), crName)
		if err == nil {
			change(is)
			gs, err = all.Update(w.t.Context(), is, metav1.UpdateOptions{})
		}
		return err
	}))
	return gs
}

// annotate sets an annotation of the GatewaySync, as a request does.
func (w *world) annotate(key, value string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	require.NoError(w.t, err)
	_, err = kube.GatewaySyncs(w.clients.Dynamic, w.ns).Patch(w.t.Context(), crName, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// lead writes the SyncTarget, as the lead does, for the requests of the GatewaySync.
func (w *world) lead(change ...func(*v1alpha1.SyncTargetSpec)) *v1alpha1.SyncTarget {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	all := kube.SyncTargets(w.clients.Dynamic, w.ns)
	t, err := all.Get(ctx, crName)
	create := apierrors.IsNotFound(err)
	gs, gone := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(ctx, crName)
	if create {
		require.NoError(w.t, gone)
		t = &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: crName, Namespace: w.ns, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: crName, UID: gs.UID}}}}
		t.Spec = v1alpha1.SyncTargetSpec{Format: 1, Generation: gs.Generation, Ref: "main", RefName: "refs/heads/main",
			Lead: v1alpha1.LeadRecord{Holder: "test", Transitions: 1}}
	} else {
		require.NoError(w.t, err)
	}
	instructed := func() v1alpha1.SyncTargetSpec {
		s := *t.Spec.DeepCopy()
		s.Lead, s.Problem = v1alpha1.LeadRecord{}, nil
		return s
	}
	before := instructed()
	if gone == nil {
		t.Spec.Requests = annotation.Hash(gs)
	}
	for _, c := range change {
		c(&t.Spec)
	}
	if after := instructed(); create || !equality.Semantic.DeepEqual(before, after) {
		t.Spec.Revision++
	}
	if create {
		t, err = all.Create(ctx, t, metav1.CreateOptions{})
	} else {
		t, err = all.Update(ctx, t, metav1.UpdateOptions{})
	}
	require.NoError(w.t, err)
	return t
}

// targetCommit makes the lead name a commit.
func targetCommit(commit string) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) { s.Commit = commit }
}

func generation(n int64) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) { s.Generation = n }
}

// pod is a gateway's pod: a data directory, a simulated gateway, and the files that the kubelet mounts.
type pod struct {
	w    *world
	name string
	uid  string
	dir  string
	data string
	gw   *simulator.Gateway

	agent *agent
}

// synced returns a pod whose gateway runs its first commit, which has the title one.
func synced(t *testing.T, change ...func(*v1alpha1.GatewaySync)) (w *world, p *pod, first string) {
	t.Helper()
	w = onSharedCluster(t)
	p = w.pod("line-0")
	first = w.commit("one")
	w.gatewaySync(p, change...)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	return w, p, first
}

// moves makes the lead name a new commit.
func (w *world) moves(title string, change ...func(*v1alpha1.SyncTargetSpec)) (commit string) {
	w.t.Helper()
	commit = w.commit(title)
	w.lead(append([]func(*v1alpha1.SyncTargetSpec){targetCommit(commit)}, change...)...)
	return commit
}

// follows makes the pod follow a new commit.
func (p *pod) follows(title string) (commit string) {
	p.w.t.Helper()
	commit = p.w.moves(title)
	p.awaitSynced(commit, title)
	return commit
}

// edits changes the project on the gateway's disk, as a user does.
func (p *pod) edits(title string) {
	p.w.t.Helper()
	require.NoError(p.w.t, os.WriteFile(filepath.Join(p.data, "projects/line/project.json"), []byte(fmt.Sprintf(project, title)), 0o600))
}

// pod creates a pod with its mounted files and a simulated gateway. No agent runs in it.
func (w *world) pod(name string, change ...func(*simulator.Options)) *pod {
	w.t.Helper()
	p := &pod{w: w, name: name, dir: filepath.Join(w.dir, name)}
	p.data = filepath.Join(p.dir, "data")
	for _, dir := range []string{"data", "repo", "podinfo", "secrets"} {
		require.NoError(w.t, os.MkdirAll(filepath.Join(p.dir, dir), 0o755))
	}
	o := simulator.Options{Data: p.data, Strict: true, Token: apiToken}
	for _, c := range change {
		c(&o)
	}
	var err error
	p.gw, err = simulator.Start(o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { assert.NoError(w.t, p.gw.Close()) })
	p.writeSecretFile("gateway", "apiKey", apiToken)
	p.writeSecretFile("git", "token", "S3CR3T-git")
	p.writePodInfo(map[string]string{"app.kubernetes.io/name": name}, map[string]string{})
	p.recreate()
	return p
}

// recreate deletes the pod and creates it with another UID.
func (p *pod) recreate() {
	p.w.t.Helper()
	pods := p.w.clients.Core.CoreV1().Pods(p.w.ns)
	zero := int64(0)
	err := pods.Delete(p.w.t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	require.True(p.w.t, err == nil || apierrors.IsNotFound(err), "%v", err)
	made, err := pods.Create(p.w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{v1alpha1.LabelCRName: crName}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway", Image: "example.com/ignition"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.w.t, err)
	p.uid = string(made.UID)
}

func (p *pod) write(name, content string) {
	p.w.t.Helper()
	file := filepath.Join(p.dir, name)
	require.NoError(p.w.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(p.w.t, os.WriteFile(file+"~", []byte(content), 0o600))
	require.NoError(p.w.t, os.Rename(file+"~", file))
}

// writeSecretFile writes a key of a Secret as a plain file, for tests that need no symlinks of the kubelet.
func (p *pod) writeSecretFile(name, key, value string) {
	p.w.t.Helper()
	p.write("secrets/"+name+"/"+key, value)
}

// mountSecret writes a Secret with one key as the kubelet does: a new directory and a symlink that is replaced atomically.
func (p *pod) mountSecret(name, key, value string) {
	p.w.t.Helper()
	dir := filepath.Join(p.dir, "secrets", name)
	version := "..version_" + rand.Text()
	p.write(filepath.Join("secrets", name, version, key), value)
	require.NoError(p.w.t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	require.NoError(p.w.t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if is, err := os.Lstat(filepath.Join(dir, key)); err == nil && is.Mode().Type() == fs.ModeSymlink {
		return
	}
	require.NoError(p.w.t, os.RemoveAll(filepath.Join(dir, key)))
	require.NoError(p.w.t, os.Symlink(filepath.Join("..data", key), filepath.Join(dir, key)))
}

// writePodInfo writes labels and annotations as the kubelet does.
func (p *pod) writePodInfo(labels, annotations map[string]string) {
	p.w.t.Helper()
	for name, m := range map[string]map[string]string{"labels": labels, "annotations": annotations} {
		var b strings.Builder
		for k, v := range m {
			fmt.Fprintf(&b, "%s=%q\n", k, v)
		}
		p.write("podinfo/"+name, b.String())
	}
}

// title returns the title of the project on the gateway's disk.
func (p *pod) title() string {
	b, err := os.ReadFile(filepath.Join(p.data, "projects", "line", "project.json"))
	if err != nil {
		return ""
	}
	var v struct{ Title string }
	require.NoError(p.w.t, json.Unmarshal(b, &v))
	return v.Title
}

// restores requests a restore of a snapshot.
func (w *world) restores(snapshot string) {
	w.annotate(v1alpha1.AnnotationRestore, annotation.RestoreValue(snapshot, time.Now()))
	w.lead()
}

// report returns the pod's report from the API server, or nil if there is none.
func (p *pod) report() *v1alpha1.SyncReport {
	r, err := kube.SyncReports(p.w.clients.Dynamic, p.w.ns).Get(context.WithoutCancel(p.w.t.Context()), p.name)
	if err != nil {
		return nil
	}
	return r
}

// await waits until the pod's report satisfies ok, and returns its status.
func (p *pod) await(what string, ok func(v1alpha1.SyncReportStatus) bool) v1alpha1.SyncReportStatus {
	p.w.t.Helper()
	var last v1alpha1.SyncReportStatus
	eventually(p.w.t, what, func() bool {
		r := p.report()
		if r == nil {
			return false
		}
		last = r.Status
		return ok(last)
	}, func() string { b, _ := json.Marshal(last); return string(b) })
	return last
}

// awaitSynced waits until the report says that the commit runs, and checks the disk.
func (p *pod) awaitSynced(commit, title string) v1alpha1.SyncReportStatus {
	p.w.t.Helper()
	s := p.await("Synced at "+commit, func(s v1alpha1.SyncReportStatus) bool {
		return s.Phase == v1alpha1.GatewaySynced && s.Commit == commit && s.Target == commit
	})
	assert.Equal(p.w.t, title, p.title(), "a report is never ahead of the disk")
	return s
}

func eventually(t *testing.T, what string, ok func() bool, detail ...func() string) {
	t.Helper()
	deadline := time.Now().Add(liveness)
	for !ok() {
		if time.Now().After(deadline) {
			for _, d := range detail {
				what += "; last: " + d()
			}
			t.Fatalf("waited %s for: %s", liveness, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
