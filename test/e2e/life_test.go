//go:build linux

package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
)

// Pods that start before their GatewaySync exists get no agent. When it exists, the injector evicts them, and their replacements get one.
func gatewaysOlderThanGatewaySync(t *testing.T, w *world) {
	p := w.plant(t)
	p.gateways(replicas(2))
	p.ready(2)
	for _, pod := range p.pods() {
		assert.False(t, inject.Has(&pod), "%s has an agent without a GatewaySync", pod.Name)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	p.checkRepaired(2)
}

// checkRepaired checks that all pods have an agent now, and waits until Events report the evictions.
func (p *plant) checkRepaired(evicted int) {
	p.t.Helper()
	for _, pod := range p.pods() {
		assert.True(p.t, inject.Has(&pod), "%s has no agent", pod.Name)
	}
	p.eventually(p.t, "Events report the evictions", func() string {
		events := p.kubectl(p.t, "get", "events.events.k8s.io", "--namespace", p.namespace, "--field-selector", "reason="+v1alpha1.EventPodEvictedForRepair, "-o", "name")
		if n := strings.Count(events, "event"); n < evicted {
			return events
		}
		return ""
	})
}

// After a GatewaySync is deleted, its gateways keep running the last commit and follow no push. A new GatewaySync takes them over.
func deletedGatewaySyncLeavesGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways(replicas(2))
	first := p.head()
	p.synced(first, 2)
	require.NoError(t, p.syncs().Delete(p.ctx, "line", metav1.DeleteOptions{}))
	targets := kube.SyncTargets(p.dynamic, p.namespace)
	p.eventually(t, "the SyncTarget is garbage collected", func() string {
		if _, err := targets.Get(p.ctx, "line"); !apierrors.IsNotFound(err) {
			return "the SyncTarget still exists"
		}
		return ""
	})
	p.push("pushed without a GatewaySync")
	time.Sleep(10 * time.Second) // two sync periods of the agents, in which nothing may happen
	_, err := targets.Get(p.ctx, "line")
	assert.True(t, apierrors.IsNotFound(err), "an agent created a SyncTarget for the deleted GatewaySync: %v", err)
	p.ready(2)
	for _, pod := range p.pods() {
		p.runs(pod.Name, first)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	assert.Zero(t, p.restarts())

	p.keepLogs(p.pods()...)
	require.NoError(t, p.client.AppsV1().StatefulSets(p.namespace).Delete(p.ctx, "line", metav1.DeleteOptions{}))
	p.eventually(t, "reports are garbage collected with their pods", func() string {
		reports, _, err := kube.SyncReports(p.dynamic, p.namespace).List(p.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(reports) > 0 {
			return "report " + reports[0].Name
		}
		return ""
	})
}

// The official chart labels its pods app.kubernetes.io/name: ignition and sets the instance label to the
// name of the release.
func twoReleasesAreTwoGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	for _, name := range []string{"a", "b"} {
		p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
			labels := map[string]string{"app.kubernetes.io/name": "ignition", "app.kubernetes.io/instance": name}
			set.Name, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels = name+"-gateway", labels, labels
			delete(set.Spec.Template.Annotations, v1alpha1.AnnotationCRName) // optional, because the namespace has only one GatewaySync
		})
	}
	gs := p.synced(p.head(), 2)
	for _, g := range gs.Status.DiscoveredGateways {
		assert.Equal(t, g.Name+"-gateway-0", g.PodName)
	}
	p.synced(p.push("second"), 2)
}

// A pod with the annotation stoker.io/require is not created before its GatewaySync exists. A wrong git password does not keep the gateway
// from starting, and the kubelet delivers the right one to the agent.
func podThatRequiresAgent(t *testing.T, w *world) {
	p := w.plant(t)
	p.password = "wrong-" + randomSecret()
	p.replaceSecret("git-credentials", "token", p.password)
	p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
		set.Spec.Template.Annotations[v1alpha1.AnnotationRequire] = "true"
	})
	p.eventually(t, "the pod is refused", func() string {
		described := p.kubectl(t, "describe", "statefulset", "line", "--namespace", p.namespace)
		return missingFrom(described, "FailedCreate", string(v1alpha1.ReasonGatewaySyncNotFound))
	})
	assert.Empty(t, p.pods())
	p.gatewaySync()
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	p.ready(1)
	p.replaceSecret("git-credentials", "token", w.password)
	p.synced(p.head(), 1)
}

// ignitionData is the data directory in the image, the same as in the official one.
const ignitionData = "/usr/local/bin/ignition/data"

// startGateway is the script of the image's entrypoint. It prints the projects that exist before the gateway starts, for
// projectsAtStart. --token-out reads an existing token and writes the file again, so it needs a writable copy.
const startGateway = `cp /token /tmp/token && chmod 600 /tmp/token && echo at the start: $(ls ` + ignitionData + `/projects 2>/dev/null) &&
exec /gateway --data ` + ignitionData + ` --listen :8088 --admin :9088 --token-out /tmp/token "$@"`

// randomSecret returns a value that occurs nowhere else.
func randomSecret() string { return strings.ToLower(rand.Text()) }

// gatewayImage returns a simulated gateway in the layout of the official image. It has a seeded data directory for init
// containers to copy, a shell for their scripts, and an entrypoint that accepts further arguments.
func gatewayImage(t *testing.T, token string) image.Image {
	busybox, err := exec.LookPath("busybox")
	require.NoError(t, err)
	i := image.Image{
		Ref: gatewayImageRef, User: "2003:2003",
		Entrypoint: []string{"/bin/sh", "-c", startGateway, "gateway"},
		Files: []image.File{
			{Path: "/bin/busybox", From: busybox},
			{Path: "/token", Content: []byte(token), Mode: 0o444},
		},
	}
	for _, name := range []string{"sh", "cp", "touch", "chmod", "sleep", "cat", "ls", "sed"} {
		i.Files = append(i.Files, image.File{Path: "/bin/" + name, Link: "busybox"})
	}
	data := t.TempDir()
	g, err := simulator.Start(simulator.Options{Data: data, Token: token})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		i.Files = append(i.Files, image.File{Path: filepath.Join(ignitionData, name), From: path, Mode: 0o644, UID: 2003, GID: 2003})
		return nil
	}))
	return i
}

// isSeenByAPerson checks that a user who may get GatewaySyncs and proxy to pods sees the files on the gateways of real pods.
func (p *plant) isSeenByAPerson(t *testing.T, now, older string) {
	t.Helper()
	for _, args := range [][]string{
		{"serviceaccount", "person"},
		{"rolebinding", "person-looks", "--clusterrole=view", "--serviceaccount=" + p.namespace + ":person"},
		{"role", "asks-agents", "--verb=get", "--resource=pods/proxy"},
		{"rolebinding", "person-asks", "--role=asks-agents", "--serviceaccount=" + p.namespace + ":person"},
	} {
		p.kubectl(t, append([]string{"create", "--namespace", p.namespace}, args...)...)
	}
	p.eventually(t, "the user may read objects and query agents", func() string {
		for _, what := range []authorizationv1.ResourceAttributes{{Group: "stoker.io", Resource: "gatewaysyncs"}, {Resource: "pods", Subresource: "proxy"}} {
			what.Namespace, what.Verb = p.namespace, "get"
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + p.namespace + ":person", ResourceAttributes: &what}}
			review, err := p.client.AuthorizationV1().SubjectAccessReviews().Create(p.ctx, review, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			if !review.Status.Allowed {
				return what.Resource
			}
		}
		return ""
	})
	person := p.As(t, p.namespace, "person", "")
	file := kubetest.KubeconfigFor(t, person, p.namespace)
	stoker := func(args ...string) string {
		return p.run(t, p.module, p.stokerPath, append(args, "--kubeconfig", file)...)
	}

	assert.Contains(t, stoker("get"), "3/3")
	status := stoker("status", "line")
	for _, gateway := range []string{"line", "line-1", "line-2"} {
		assert.Contains(t, status, gateway)
	}
	assert.Contains(t, status, now[:7])

	var all []struct {
		Gateway, From, To string
		Changes           []struct{ Op, Path string }
	}
	require.NoError(t, json.Unmarshal([]byte(stoker("diff", "line", "--repo", p.repo.Dir, "--ref", older, "--output", "json")), &all))
	require.Len(t, all, 3, "the output must have one entry for each gateway")
	for _, d := range all {
		assert.Equal(t, now, d.From, "%s: the output must name the commit that the agent reported", d.Gateway)
		assert.Equal(t, older, d.To)
		var changes []string
		for _, c := range d.Changes {
			changes = append(changes, c.Op+" "+c.Path)
		}
		// The signature in resource.json changes together with the view.
		assert.ElementsMatch(t, []string{"update " + overview + "/view.json", "update " + overview + "/resource.json"}, changes, d.Gateway)
	}
}

// watcher sees every status of every GatewaySync and compares it with the gateways.
type watcher struct {
	*world
	mu       sync.Mutex
	plants   map[string]*plant // by namespace
	wrong    []string
	statuses int
	asked    int // number of gateways compared
	asking   sync.WaitGroup
}

func startWatcher(t *testing.T, w *world) *watcher {
	watcher := &watcher{world: w, plants: map[string]*plant{}}
	ctx, stop := context.WithCancel(w.ctx)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(w.dynamic, 0)
	informer := factory.ForResource(kube.GatewaySync.Resource()).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { watcher.saw(ctx, now) },
		UpdateFunc: func(_, now any) { watcher.saw(ctx, now) },
	})
	require.NoError(t, err)
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		stop()
		factory.Shutdown()
		watcher.asking.Wait()
		w.say("%d statuses seen, %d comparisons with gateways", watcher.statuses, watcher.asked)
		assert.Empty(t, watcher.wrong, "a status contradicted the gateways")
		if os.Getenv(envE2E) != "some" { // one scenario may have no gateway
			assert.NotZero(t, watcher.statuses)
			assert.NotZero(t, watcher.asked)
		}
	})
	return watcher
}

func (w *watcher) add(p *plant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plants[p.namespace] = p
}

func (w *watcher) blame(gs *v1alpha1.GatewaySync, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf("%s at %s: %s\n   %s", gs.Namespace, gs.ResourceVersion, fmt.Sprintf(format, args...), describe(gs)))
}

func (w *watcher) saw(ctx context.Context, now any) {
	u, ok := now.(*unstructured.Unstructured)
	if !ok {
		return
	}
	gs := new(v1alpha1.GatewaySync)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, gs)
	w.mu.Lock()
	p := w.plants[u.GetNamespace()]
	w.statuses++
	w.mu.Unlock()
	switch {
	case err != nil:
		w.blame(&v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace()}}, "the status cannot be read: %v", err)
	case p != nil:
		w.judge(gs)
		w.asking.Go(func() { w.ask(ctx, p, gs) })
	}
}

// judge checks the invariants of a status that hold whatever the gateways do.
func (w *watcher) judge(gs *v1alpha1.GatewaySync) {
	seen := map[string]bool{}
	for _, c := range gs.Status.Conditions {
		if seen[c.Type] {
			w.blame(gs, "two conditions %s", c.Type)
		}
		seen[c.Type] = true
		if c.ObservedGeneration > gs.Generation {
			w.blame(gs, "%s has generation %d, but the newest is %d", c.Type, c.ObservedGeneration, gs.Generation)
		}
	}
	if !isTrue(gs, v1alpha1.ConditionReady) {
		return
	}
	if isTrue(gs, v1alpha1.ConditionStalled) {
		w.blame(gs, "Ready and Stalled")
	}
	if gs.Status.Target == nil || gs.Status.Target.Commit == "" {
		return // paused, or no request yet: no gateway and no commit
	}
	if n := len(gs.Status.DiscoveredGateways); n > 0 && gs.Status.GatewaysReady != fmt.Sprintf("%d/%d", n, n) {
		w.blame(gs, "Ready, with %s gateways of %d", gs.Status.GatewaysReady, n)
	}
	for _, g := range gs.Status.DiscoveredGateways {
		if g.SyncedCommit != gs.Status.Target.Commit || !slices.Contains([]v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby}, g.SyncStatus) {
			w.blame(gs, "Ready, and %s is %s at %.7s", g.Name, g.SyncStatus, g.SyncedCommit)
		}
	}
}

func isTrue(gs *v1alpha1.GatewaySync, kind string) bool {
	c := condition(gs, kind)
	return c != nil && c.Status == metav1.ConditionTrue
}

// settled is the age at which the lead must know a pod.
const settled = 30 * time.Second

// ask asks the gateways what they have loaded. They may be ahead of the status, but never behind.
func (w *watcher) ask(ctx context.Context, p *plant, gs *v1alpha1.GatewaySync) {
	began := time.Now()
	pods, err := w.client.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the API server is unavailable; the next status arrives when it is back
	}
	byPod := map[string]v1alpha1.DiscoveredGateway{}
	for _, g := range gs.Status.DiscoveredGateways {
		byPod[g.PodName] = g
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		row, listed := byPod[pod.Name]
		said := row.SyncedCommit
		if isTrue(gs, v1alpha1.ConditionReady) && gs.Status.Target != nil && len(gs.Status.DiscoveredGateways) > 0 {
			said = gs.Status.Target.Commit
			listed = listed || began.Sub(pod.CreationTimestamp.Time) > settled
		}
		// A gateway that starts loads files that were written before; until then its row is Applied and
		// Ready is not True. The row of a standby node describes its files, which the other node copies
		// and tells it to load.
		loads := row.SyncStatus != v1alpha1.GatewayStandby && (row.SyncStatus == v1alpha1.GatewaySynced || isTrue(gs, v1alpha1.ConditionReady))
		if !listed || !loads || said == "" || pod.DeletionTimestamp != nil || !isReady(pod) {
			continue
		}
		digest, err := p.loaded(ctx, pod.Name)
		if err != nil {
			continue // the pod has been deleted meanwhile
		}
		w.mu.Lock()
		w.asked++
		w.mu.Unlock()
		if has := p.running(digest); has < p.order(said) && !w.wentBack(ctx, p, gs) {
			w.blame(gs, "%s has commit %d, counted from 0, and the status speaks of %d", pod.Name, has, p.order(said))
		}
	}
}

// wentBack reports whether a gateway may run an older commit than the status says. That is so while a snapshot is
// restored, and in a plant that requests older commits if the status is not Ready or the object has changed since.
// The rows of single gateways may then name the previous commit.
func (w *watcher) wentBack(ctx context.Context, p *plant, gs *v1alpha1.GatewaySync) bool {
	p.mu.Lock()
	older, restores := p.requestsOlder, p.restores
	p.mu.Unlock()
	if restores { // a gateway is back a moment before the lead knows it
		return true
	}
	if !older || !isTrue(gs, v1alpha1.ConditionReady) {
		return older
	}
	asked := v1alpha1.AnnotationRequestedAt
	if gs.Status.Target == nil || gs.Status.Target.RequestedAt != gs.Annotations[asked] {
		return true
	}
	now, err := p.syncs().Get(ctx, gs.Name)
	return err != nil || now.Generation != gs.Generation || now.Annotations[asked] != gs.Annotations[asked]
}
