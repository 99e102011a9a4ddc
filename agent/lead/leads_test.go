package lead

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
)

// story changes a GatewaySync like operators and automation do, and predicts independently what its gateways must run. A
// request is in force until the spec names another ref, or the branch moves off the commit that the request names.
type story struct {
	*fakeFleet
	branches sync.Map // name → commit
	alive    bool     // a request is in force
	over     string   // the ref of the spec that the last request replaced
	log      []string // the changes
}

var storyRefs = []string{"main", "release", "v2", "a@b"}

func (s *story) branch(name string) string {
	commit, _ := s.branches.Load(name)
	return commit.(string)
}

// ask answers as git would.
func (s *story) ask(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
	_ = s.poll(ctx, gs, q) // takes time
	f := pollResult{question: q}
	want, err := desiredref.Of(gs, "")
	if err == nil && want.ResolveSpec {
		f.specCommit = s.branch(gs.Spec.Git.Ref)
		want, err = desiredref.Of(gs, f.specCommit)
	}
	f.desired, f.err = want.Ref, err
	if err == nil {
		f.name, f.commit = "refs/heads/"+want.Ref, s.branch(want.Ref)
	}
	return f
}

// step is the nth change, of a random kind.
func (s *story) step(r *rand.Rand, n int) {
	at, ref := fmt.Sprintf("t%d", n), storyRefs[r.IntN(len(storyRefs))]
	action := []string{"spec", "spec", "push", "setter", "rollback", "plain", "remove", "hint"}[r.IntN(8)]
	s.log = append(s.log, action+" "+ref)
	if action == "push" {
		s.branches.Store(ref, []string{commitA, commitB}[r.IntN(2)])
	}
	s.change(func(gs *v1alpha1.GatewaySync) {
		a, spec := gs.Annotations, gs.Spec.Git.Ref
		old := a[v1alpha1.AnnotationRequestedRef]
		switch action {
		case "spec":
			if spec != ref {
				gs.Spec.Git.Ref = ref
				gs.Generation++
			}
		case "setter", "rollback":
			a[v1alpha1.AnnotationRequestedRef] = ref
			a[v1alpha1.AnnotationRequestedOver] = desiredref.RequestOver(ref, spec, at)
			a[v1alpha1.AnnotationRequestedAt] = at
			delete(a, v1alpha1.AnnotationRequestedUnless)
			if action == "rollback" {
				a[v1alpha1.AnnotationRequestedUnless] = s.branch(spec)
			}
			s.alive, s.over = true, spec
		case "plain":
			a[v1alpha1.AnnotationRequestedRef] = ref
			if ref != old {
				s.alive, s.over = true, spec
				if rest, ok := strings.CutPrefix(a[v1alpha1.AnnotationRequestedOver], ref+"@"); ok {
					s.over, _, _ = strings.Cut(rest, " ")
				}
			}
		case "remove":
			for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless} {
				delete(a, name)
			}
			s.alive = false
		case "hint":
			a[v1alpha1.AnnotationRequestedAt] = at
		}
		spec = gs.Spec.Git.Ref
		unless := a[v1alpha1.AnnotationRequestedUnless]
		if !strings.HasPrefix(a[v1alpha1.AnnotationRequestedOver], a[v1alpha1.AnnotationRequestedRef]+"@") {
			unless = "" // it belongs to a rollback that a newer request replaced
		}
		if s.over != spec || unless != "" && a[v1alpha1.AnnotationRequestedRef] != spec && unless != s.branch(spec) {
			s.alive = false
		}
	})
}

// want returns the ref that the gateways must follow.
func (s *story) want() string {
	gs, _ := s.sync()
	if s.alive {
		return gs.Annotations[v1alpha1.AnnotationRequestedRef]
	}
	return gs.Spec.Git.Ref
}

// A rollback may name a commit that the lead has not seen yet. The older commit that the lead knows must not end the rollback.
func TestRollbackOfUnseenCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{fakeFleet: newFakeFleet(t, 1)}
		s.GatewaySync.Spec.Polling.Interval = "24h"
		s.GatewaySync.Annotations = map[string]string{}
		s.branches.Store("main", commitA)
		s.branches.Store("v2", commitA)
		s.leadWith(s.ask, func() {
			rollback := func(unless string) {
				s.change(func(gs *v1alpha1.GatewaySync) {
					gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2", v1alpha1.AnnotationRequestedUnless: unless,
						v1alpha1.AnnotationRequestedOver: desiredref.RequestOver("v2", "main", "t"+unless)}
				})
				time.Sleep(10 * time.Second)
			}
			rollback(commitA)
			require.Equal(t, "v2", s.target().Ref)
			s.branches.Store("main", commitB)
			rollback(commitB)
			require.Equal(t, "v2", s.target().Ref)
			gs, _ := s.sync()
			require.Empty(t, gs.Status.Request.Lapsed)
		})
	})
}

// A pod without an agent that names no GatewaySync belongs to the only one. An API server that does not answer must not hide it.
func TestSoleGatewaySync(t *testing.T) {
	other := siteAt("6")
	other.SetName("other")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List"}, siteAt("5"))
	busy, asked := false, 0
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return busy, nil, apierrors.NewTooManyRequests("try again", 1)
	})
	pods := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	require.NoError(t, pods.GetStore().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "plant", Name: "gw-0", Annotations: map[string]string{v1alpha1.AnnotationInject: "true"},
	}}))
	now := time.Now()
	s := &apiFleet{
		Lead:        &Lead{Config: Config{Now: func() time.Time { return now }}, lock: &lock{syncs: kube.GatewaySyncs(client, "plant")}},
		podInformer: pods,
	}
	// sequence: each step follows the one before
	for i, step := range []struct {
		busy  bool
		after time.Duration
		two   bool
		sole  bool
		asked int
	}{
		{busy: true, sole: true, asked: 1},                        // no answer yet
		{busy: true, after: time.Second, sole: true},              // too early to ask again
		{busy: true, after: soleRetry, sole: true, asked: 1},      // still no answer
		{after: soleRetry, sole: true, asked: 1},                  // the first answer
		{busy: true, after: soleCached - time.Second, sole: true}, // it is cached
		{busy: true, after: time.Second, sole: true, asked: 1},    // the last answer stays
		{after: soleRetry, two: true, asked: 1},                   // a second GatewaySync
		{busy: true, after: soleCached, two: true, asked: 1},      // the last answer stays
		{busy: true, after: soleRetry, two: true, asked: 1},       // and stays
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			now, busy, asked = now.Add(step.after), step.busy, 0
			if _, err := client.Tracker().Get(kube.GatewaySync.Resource(), "plant", "other"); step.two && err != nil {
				require.NoError(t, client.Tracker().Add(other))
			}
			assert.Equal(t, step.sole, s.sole(t.Context()))
			assert.Equal(t, step.asked, asked)
		})
	}
}

func siteAt(version string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
	u.SetNamespace("plant")
	u.SetName("site")
	u.SetResourceVersion(version)
	return u
}

// With several API servers, one may lag in lists and watches, but a get by name returns the latest version. The lead waits until its watch shows
// that version.
func TestLeadAwaitsCurrentGatewaySync(t *testing.T) {
	for _, c := range []struct {
		name  string
		is    string // "" if it does not exist
		comes []string
		after time.Duration
		err   error
		asked int
	}{
		{name: "current watch", is: "5", asked: 1},
		{name: "watch two versions behind", is: "7", comes: []string{"6", "7"}, after: 1400 * time.Millisecond, asked: 2},
		{name: "silent watch", is: "7", after: (1<<maxReads - 1) * time.Second, err: errWatchStalled, asked: maxReads},
		{name: "deleted object", err: errGone, asked: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
					map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): v1alpha1.KindGatewaySync + "List"}, siteAt("5"))
				asked := 0
				client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					asked++
					if c.is == "" {
						return true, nil, apierrors.NewNotFound(kube.GatewaySync.Resource().GroupResource(), "site")
					}
					return true, siteAt(c.is), nil
				})
				client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
					if w, ok := action.(clienttesting.WatchActionImpl); ok && w.ListOptions.SendInitialEvents != nil {
						return true, nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
					}
					w := watch.NewFake()
					go func() {
						for _, version := range c.comes {
							time.Sleep(700 * time.Millisecond)
							w.Modify(siteAt(version))
						}
					}()
					return true, w, nil
				})
				l := &Lead{Config: Config{Namespace: "plant", GatewaySync: "site"}, lock: &lock{syncs: kube.GatewaySyncs(client, "plant")}}
				in, err := l.lock.syncs.Informer(nil, nil)
				require.NoError(t, err)
				go in.Run(t.Context())
				synctest.Wait()
				require.True(t, in.HasSynced())

				began := time.Now()
				assert.ErrorIs(t, l.awaitCurrent(t.Context(), in), c.err)
				assert.InDelta(t, c.after, time.Since(began), float64(100*time.Millisecond))
				assert.Equal(t, c.asked, asked)
			})
		})
	}
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The backup has Ready for an old commit. The lead has seen resource versions that do not exist any more.
func TestLeadAfterEtcdRestore(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, kubetest.Control(t, kubetest.Private()), 2)
	agent := s.synced("gw-0", "gw-1")

	etcd := filepath.Join(filepath.Dir(s.cluster.Kubeconfig()), "etcd")
	backup := filepath.Join(t.TempDir(), "etcd")
	down := func(do func()) {
		s.cluster.Stop(t, kubetest.APIServer)
		s.cluster.Stop(t, kubetest.Etcd)
		do()
		s.cluster.Start(t, kubetest.Etcd)
		s.cluster.Start(t, kubetest.APIServer)
	}
	down(func() { copied(t, etcd, backup) })
	second := s.Commit("second", gitserver.Write("projects/a/project.json", `{"title":"b"}`))
	s.takesAll(second, "gw-0", "gw-1")
	s.until("the second commit", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.LastGood.Commit == second && condition(&gs.Status, v1alpha1.ConditionReady) == "True/Synced"
	})
	for i := range 60 { // setup: resource versions that the backup has not reached
		_, err := s.admin.Core.CoreV1().ConfigMaps(s.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("x", i)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	s.takes("gw-0", "gw-1")
	s.annotate("example.com/last", "write")
	version := func() int {
		n, err := strconv.Atoi(s.sync().ResourceVersion)
		require.NoError(t, err)
		return n
	}
	at := version()
	down(func() {
		require.NoError(t, os.RemoveAll(etcd))
		copied(t, backup, etcd)
	})
	require.Less(t, version(), at)
	writes := agent.wire.count("PATCH status")

	third := s.Commit("third", gitserver.Write("projects/a/project.json", `{"title":"c"}`))
	s.untilTarget(third)
	s.until("Ready is false", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Target.Commit == third && condition(&gs.Status, v1alpha1.ConditionReady) == "False/Progressing"
	})
	s.takes("gw-0", "gw-1")
	gs := s.untilReady("True/Synced")
	assert.Equal(t, third, gs.Status.LastGood.Commit)
	assert.Less(t, agent.wire.count("PATCH status")-writes, 20, "rejected writes back off")
	assert.Less(t, version(), at, "the resource versions are still older")
}

// A request is handled when the only gateway is back. Its pod is real, and terminates slowly because of a finalizer.
func TestSoleGatewayRestart(t *testing.T) {
	s := newSite(t, 0, slow)
	s.gateway("gw-0", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/ends-slowly"} })
	// The API server rejects the token of a deleted pod, so the lead runs in a pod that is not a gateway.
	s.gateway("lead", func(p *corev1.Pod) { p.Labels, p.Annotations = map[string]string{"app": "lead"}, nil })
	s.candidate("lead")
	s.runs(s.first, "gw-0")
	pods := s.admin.Core.CoreV1().Pods(s.ns)
	require.NoError(t, pods.Delete(t.Context(), "gw-0", metav1.DeleteOptions{}))
	gs := s.untilReady("Unknown/AgentsAway")
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at)
	require.Eventually(t, func() bool { return s.target().RequestedAt == at }, tenfold, 20*time.Millisecond)
	_, err := pods.Patch(t.Context(), "gw-0", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	was := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReconciling)
	gs = s.until("the pod is gone", func(gs *v1alpha1.GatewaySync) bool {
		return len(gs.Status.DiscoveredGateways) == 1 && gs.Status.DiscoveredGateways[0].Message == "its pod is gone"
	})
	assert.Equal(t, "Unknown/AgentsAway", condition(&gs.Status, v1alpha1.ConditionReady))
	assert.Equal(t, was.LastTransitionTime, meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime)
	assert.Empty(t, gs.Status.LastHandledRequest)
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	require.NoError(t, s.reports().Delete(t.Context(), "gw-0", metav1.DeleteOptions{})) // its owner is gone
	s.gateway("gw-0")
	s.takes("gw-0")
	gs = s.untilReady("True/Synced")
	assert.Equal(t, at, gs.Status.LastHandledRequest)
}

func TestStatusUsesServerTime(t *testing.T) {
	s := newSite(t, 1)
	s.ahead = 20 * time.Minute
	s.candidate("gw-0")
	s.takesAll(s.first, "gw-0")
	gs := s.untilReady("True/Synced")
	is := time.Now().Add(s.ahead)
	assert.WithinDuration(t, is, gs.Status.LastGood.At.Time, tenfold)
	assert.WithinDuration(t, is, meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Time, tenfold)
	assert.WithinDuration(t, is, s.target().ResolvedAt.Time, tenfold)
}
