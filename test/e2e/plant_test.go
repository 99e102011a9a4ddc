//go:build linux

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// The paths of the view that every commit changes, on the gateway and in git.
const (
	overview = "projects/site-a/com.inductiveautomation.perspective/views/Overview"
	inGit    = "services/site-a/" + overview + "/view.json"
)

// plant is what one team has: a namespace with a repository, its GatewaySync and gateways.
type plant struct {
	*world
	t         *testing.T
	namespace string
	repoName  string
	repo      *gitserver.Repo

	password string // of the repository, as in the Secret

	mu            sync.Mutex
	commits       []string // oldest first
	views         []string // digest of the view in each commit
	logs          strings.Builder
	requestsOlder bool // whether the test also requests older commits
	restores      bool // a snapshot is being restored
}

// plant creates a namespace with Secrets and a repository with the first commit of the example.
func (w *world) plant(t *testing.T) *plant { return w.plantIn(t, w.Namespace(t)) }

func (w *world) plantIn(t *testing.T, namespace string) *plant {
	p := &plant{world: w, t: t, namespace: namespace, password: w.password}
	p.repoName = p.namespace + ".git"
	p.repo = gitserver.NewRepo(t, filepath.Join(w.gitRoot, p.repoName))
	p.commit("first", gitserver.Files(example(t, filepath.Join(w.module, "examples", "quickstart"))))
	p.secret("git-credentials", "token", w.password)
	p.secret("git-ca", "ca.crt", string(w.git.CA()))
	w.watcher.add(p)
	t.Cleanup(func() {
		if t.Failed() || os.Getenv(envE2E) == "logs" {
			w.dump(t, p.namespace)
		}
		p.checkLogs()
	})
	return p
}

// example reads the files of an example.
func example(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(content)
		return err
	}))
	return files
}

func (p *plant) secret(name, key, value string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Secrets(p.namespace).Create(p.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{key: value},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

func (p *plant) replaceSecret(name, key, value string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Secrets(p.namespace).Update(p.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{key: value},
	}, metav1.UpdateOptions{})
	require.NoError(p.t, err)
}

// commit commits and records the digest of the view.
func (p *plant) commit(message string, edits ...gitserver.Edit) string {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.repo.Commit(message, edits...)
	p.commits, p.views = append(p.commits, id), append(p.views, digestOf(p.repo.Content(id, inGit)))
	return id
}

// push changes the view in git.
func (p *plant) push(title string) string {
	p.t.Helper()
	view := p.repo.Content(p.repo.Head(), inGit)
	changed := strings.Replace(view, "{", fmt.Sprintf("{\n  \"pushed\": %q,", title), 1)
	require.NotEqual(p.t, view, changed)
	return p.commit(title, gitserver.Write(inGit, changed))
}

// head returns the newest commit.
func (p *plant) head() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commits[len(p.commits)-1]
}

// order returns the index of a commit of the plant, or -1.
func (p *plant) order(commit string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Index(p.commits, commit)
}

// view returns the digest of the view in a commit.
func (p *plant) view(commit string) string {
	p.t.Helper()
	order := p.order(commit)
	require.NotEqual(p.t, -1, order, "%s is not a commit of the plant", commit)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.views[order]
}

// running returns the index of the newest commit with this view.
func (p *plant) running(digest string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.views) - 1; i >= 0; i-- {
		if p.views[i] == digest {
			return i
		}
	}
	return -1
}

// manifest decodes the object of a kind from the files of the example.
func manifest[T any](p *plant, kind string) *T {
	p.t.Helper()
	for _, name := range []string{"gatewaysync.yaml", "statefulset.yaml"} {
		content, err := os.ReadFile(filepath.Join(p.module, "examples", "kubernetes", name))
		require.NoError(p.t, err)
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			var raw json.RawMessage
			err := decoder.Decode(&raw)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(p.t, err)
			var meta metav1.TypeMeta
			require.NoError(p.t, json.Unmarshal(raw, &meta))
			if meta.Kind == kind {
				object := new(T)
				require.NoError(p.t, yaml.UnmarshalStrict(raw, object))
				return object
			}
		}
	}
	p.t.Fatalf("no %s among the examples", kind)
	return nil
}

func (p *plant) syncs() *kube.Objects[v1alpha1.GatewaySync] {
	return kube.GatewaySyncs(p.dynamic, p.namespace)
}

// gatewaySync creates the GatewaySync of the example with the plant's repository and shorter intervals.
func (p *plant) gatewaySync(changes ...func(*v1alpha1.GatewaySync)) {
	p.t.Helper()
	gs := manifest[v1alpha1.GatewaySync](p, v1alpha1.KindGatewaySync)
	gs.Spec.Git.Repo = p.git.URL(p.repoName)
	gs.Spec.Git.CASecretRef = &v1alpha1.SecretKeyRef{Name: "git-ca", Key: "ca.crt"}
	gs.Spec.Polling.Interval = "1s"
	gs.Spec.Sync.Defaults.SyncPeriod = new(int32(5))
	for _, change := range changes {
		change(gs)
	}
	_, err := p.syncs().Create(p.ctx, gs, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// gateways creates the StatefulSet of the example with simulated gateways.
func (p *plant) gateways(changes ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	p.t.Helper()
	set, err := p.client.AppsV1().StatefulSets(p.namespace).Create(p.ctx, p.statefulSet(changes...), metav1.CreateOptions{})
	require.NoError(p.t, err)
	return set
}

// statefulSet returns the StatefulSet of the example with simulated gateways.
func (p *plant) statefulSet(changes ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	p.t.Helper()
	set := manifest[appsv1.StatefulSet](p, "StatefulSet")
	template := &set.Spec.Template.Spec
	for _, list := range [][]corev1.Container{template.InitContainers, template.Containers} {
		for i := range list {
			list[i].Image, list[i].ImagePullPolicy = gatewayImageRef, corev1.PullNever
		}
	}
	template.Containers[0].ReadinessProbe.PeriodSeconds = 1
	template.TerminationGracePeriodSeconds = new(int64(10))
	for _, change := range changes {
		change(set)
	}
	class := p.volumes(int(*set.Spec.Replicas))
	set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName = &class
	return set
}

func (p *plant) volumes(number int) string {
	p.t.Helper()
	p.volumesAtOnce.Lock()
	defer p.volumesAtOnce.Unlock()
	return p.Volumes(p.t, number)
}

func replicas(n int32) func(*appsv1.StatefulSet) {
	return func(set *appsv1.StatefulSet) { set.Spec.Replicas = &n }
}

func (p *plant) get() *v1alpha1.GatewaySync {
	p.t.Helper()
	gs, err := p.syncs().Get(p.ctx, "line")
	require.NoError(p.t, err)
	return gs
}

// synced waits until the GatewaySync reports that the given number of gateways run a commit, verified. It
// then checks the gateways themselves.
func (p *plant) synced(commit string, gateways int) *v1alpha1.GatewaySync {
	p.t.Helper()
	var gs *v1alpha1.GatewaySync
	want := fmt.Sprintf("%d/%d", gateways, gateways)
	p.eventually(p.t, fmt.Sprintf("%s at %.7s", want, commit), func() string {
		var err error
		if gs, err = p.syncs().Get(p.ctx, "line"); err != nil {
			return err.Error()
		}
		ready := condition(gs, v1alpha1.ConditionReady)
		switch {
		case ready == nil:
			return "no condition Ready"
		case ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == gs.Generation && gs.Status.GatewaysReady == want &&
			gs.Status.Target != nil && gs.Status.Target.Commit == commit:
			return ""
		}
		return describe(gs)
	})
	for _, g := range gs.Status.DiscoveredGateways {
		if g.SyncStatus == v1alpha1.GatewayStandby {
			p.loads(g.PodName, commit) // a standby row describes its files, which the other node copied
		}
	}
	for _, pod := range p.pods() {
		p.runs(pod.Name, commit)
	}
	return gs
}

func describe(gs *v1alpha1.GatewaySync) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s gateways", gs.Status.GatewaysReady)
	if gs.Status.Target != nil {
		fmt.Fprintf(&b, " at %.7s", gs.Status.Target.Commit)
	}
	for _, c := range gs.Status.Conditions {
		fmt.Fprintf(&b, "; %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, g := range gs.Status.DiscoveredGateways {
		fmt.Fprintf(&b, "; %s %s %s %.7s %s", g.Name, g.SyncStatus, g.Reason, g.SyncedCommit, g.Message)
	}
	return b.String()
}

func condition(gs *v1alpha1.GatewaySync, kind string) *metav1.Condition {
	for i := range gs.Status.Conditions {
		if gs.Status.Conditions[i].Type == kind {
			return &gs.Status.Conditions[i]
		}
	}
	return nil
}

// pods returns the gateway pods of the plant that are not terminating, by name.
func (p *plant) pods() []corev1.Pod {
	p.t.Helper()
	return slices.DeleteFunc(p.everyPod(), func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Labels[batchv1.JobNameLabel] != ""
	})
}

// everyPod returns the pods of gateways and Jobs of the plant.
func (p *plant) everyPod() []corev1.Pod {
	p.t.Helper()
	all, err := p.client.CoreV1().Pods(p.namespace).List(p.ctx, metav1.ListOptions{})
	require.NoError(p.t, err)
	slices.SortFunc(all.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return all.Items
}

// admin calls the simulator in a pod directly, without any part of Stoker.
func (p *plant) admin(ctx context.Context, pod, path string) ([]byte, error) {
	return p.client.CoreV1().Pods(p.namespace).ProxyGet("http", pod, "9088", path, nil).DoRaw(ctx)
}

// loaded returns the digest of the view that a gateway has loaded.
func (p *plant) loaded(ctx context.Context, pod string) (string, error) {
	raw, err := p.admin(ctx, pod, "/loaded/"+overview)
	if err != nil {
		return "", err
	}
	var files map[string]string
	if err := json.Unmarshal(raw, &files); err != nil {
		return "", err
	}
	return files["view.json"], nil
}

// loads waits until a gateway has loaded a commit.
func (p *plant) loads(pod, commit string) {
	p.t.Helper()
	want := p.view(commit)
	p.eventually(p.t, pod+" loads "+short7(commit), func() string {
		digest, err := p.loaded(p.ctx, pod)
		switch {
		case err != nil:
			return err.Error()
		case digest != want:
			return pod + " has loaded another commit; " + describe(p.get())
		}
		return ""
	})
}

// runs checks that a gateway has loaded a commit, that it found no invalid file, and that its own files
// are unchanged.
func (p *plant) runs(pod, commit string) {
	p.t.Helper()
	digest, err := p.loaded(p.ctx, pod)
	require.NoError(p.t, err, pod)
	assert.Equal(p.t, p.view(commit), digest, "%s: the loaded view is that of commit %d, counted from 0, instead of %d", pod, p.running(digest), p.order(commit))
	_, err = p.admin(p.ctx, pod, "/canaries")
	require.NoError(p.t, err, "%s: the agent must not change the gateway's own files", pod)
	problems, err := p.admin(p.ctx, pod, "/load-errors")
	require.NoError(p.t, err, pod)
	assert.JSONEq(p.t, "[]", string(problems), "%s: the gateway must load all files", pod)
}

// ready waits until the given number of gateways are ready.
func (p *plant) ready(gateways int) {
	p.t.Helper()
	p.eventually(p.t, fmt.Sprintf("%d gateways serve", gateways), func() string {
		all := p.pods()
		missing := fmt.Sprintf("%d pods", len(all))
		n := 0
		for _, pod := range all {
			if isReady(&pod) {
				n++
			} else {
				missing += fmt.Sprintf("; %s %s %v", pod.Name, pod.Status.Phase, pod.Status.InitContainerStatuses)
			}
		}
		if n == gateways && len(all) == gateways {
			return ""
		}
		return missing
	})
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// keepLogs saves the logs of pods before they are deleted.
func (p *plant) keepLogs(pods ...corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), time.Minute)
	defer cancel()
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			raw, err := p.client.CoreV1().Pods(p.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name}).DoRaw(ctx)
			if err == nil {
				p.logs.Write(raw)
			}
		}
	}
}

// checkLogs checks that the logs of the plant contain no secret and no refused request.
func (p *plant) checkLogs() {
	p.t.Helper()
	p.keepLogs(p.everyPod()...)
	// Objects that a user with read access can see must not contain a secret either.
	p.logs.WriteString(p.kubectl(p.t, "get", "gatewaysyncs.stoker.io,synctargets.stoker.io,syncreports.stoker.io,pods,events", "--namespace", p.namespace, "-o", "yaml"))
	p.checkSaid(p.t, p.logs.String(), p.unbound()...)
	assert.False(p.t, p.password != p.world.password && strings.Contains(p.logs.String(), p.password), "the log must not contain the wrong password")
}

// unbound returns the time before the injector bound the role of the plant's agents, which it does when it
// sees their pods.
func (p *plant) unbound() []spell {
	p.t.Helper()
	binding, err := p.client.RbacV1().RoleBindings(p.namespace).Get(p.ctx, "stoker-agent", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(p.t, err)
	until := binding.CreationTimestamp.Time
	for _, f := range binding.ManagedFields { // another ServiceAccount may have been added later
		if f.Time != nil && f.Time.After(until) {
			until = f.Time.Time
		}
	}
	// Timestamps have whole seconds, and the API server applies a binding a moment after storing it.
	return []spell{{until: until.Add(3 * time.Second)}}
}

// missingFrom reports the first wanted string that a text lacks, or "".
func missingFrom(text string, wanted ...string) string {
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			return fmt.Sprintf("no %q in:\n%s", w, text)
		}
	}
	return ""
}

func digestOf(view string) string {
	sum := sha256.Sum256([]byte(view))
	return hex.EncodeToString(sum[:])
}

// tell posts to the admin interface of the simulator in a pod.
func (p *plant) tell(pod, path, body string) {
	p.t.Helper()
	require.NoError(p.t, p.told(pod, path, body))
}

// told is tell for a goroutine, which cannot end the test.
func (p *plant) told(pod, path, body string) error {
	err := p.client.CoreV1().RESTClient().Post().Namespace(p.namespace).Resource("pods").SubResource("proxy").
		Name("http:" + pod + ":9088").Suffix(path).Body([]byte(body)).Do(p.ctx).Error()
	if err != nil {
		return fmt.Errorf("%s: %s: %w", pod, path, err)
	}
	return nil
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
