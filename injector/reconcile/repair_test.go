package reconcile

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/clientset"
)

// counted counts evictions by their result.
type counted map[string]int

func (counted) SetPodsWithoutAgent(map[v1alpha1.Reason]int) {}
func (counted) SetFleets([]types.NamespacedName, int)       {}
func (c counted) Eviction(result string)                    { c[result]++ }
func (counted) Iterated(string, string, time.Duration)      {}

// evicting returns a Reconciler with one pod to repair. Each eviction calls answer with the recorded evictions at that time.
func evicting(t *testing.T, now *time.Time, answer func(dry bool, written string) error) (u *Reconciler, repair func() (verdict, map[string]replacement, error)) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector"}}
	lease.Spec.HolderIdentity = new("me")
	client := clientset.New(lease)
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		assert.EqualValues(t, "gw", *e.DeleteOptions.Preconditions.UID)
		l, err := client.Tracker.Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "stoker-system", "injector")
		require.NoError(t, err)
		return true, nil, answer(len(e.DeleteOptions.DryRun) > 0, l.(*coordinationv1.Lease).Annotations[annotationEvicted])
	})
	u = &Reconciler{Config: Config{Core: client, Repair: RepairEvict, WebhookReady: func() bool { return true }, Metrics: counted{}, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return *now }}, limiter: flowcontrol.NewFakeAlwaysRateLimiter(), namespaces: map[string]*namespace{}}
	u.evictions = &evictionStore{lease: held(client, "me"), now: u.Now, evicted: map[types.UID]eviction{}}
	p, gs := ownedPod("gw-0", "gw", "StatefulSet", false, 0), newGatewaySync()
	gs.UID = "line"
	return u, func() (verdict, map[string]replacement, error) {
		replacements := map[string]replacement{}
		d, _, err := u.repair(t.Context(), gs, p, toInject(createdTooEarly), podIndex{live: []*corev1.Pod{p}}, replacements)
		return d, replacements, err
	}
}

func TestEvictionIsRecordedFirst(t *testing.T) {
	now := noon.Add(time.Minute)
	var calls []string
	u, repair := evicting(t, &now, func(dry bool, written string) error {
		switch {
		case dry:
			assert.Empty(t, written)
			calls = append(calls, "dry run")
		default:
			assert.Contains(t, written, `"pod":"gw-0"`)
			calls = append(calls, "eviction")
		}
		return nil
	})
	d, replacements, err := repair()
	require.NoError(t, err)
	assert.Empty(t, d.reason)
	assert.Equal(t, []string{"dry run", "eviction"}, calls)
	assert.NotEmpty(t, replacements["line"].wait, "no other pod of the GatewaySync may be evicted")
	_, ok := u.evictions.of("line")
	assert.True(t, ok)
	assert.Equal(t, counted{"evicted": 1}, u.Metrics)
}

// If a rollout of the Deployment is in progress when the GatewaySync appears, each ReplicaSet has a pod. The younger one existed
// before the eviction.
func TestOlderPodIsNotSuccessor(t *testing.T) {
	now := noon.Add(time.Minute)
	u, _ := evicting(t, &now, func(bool, string) error { return nil })
	old := ownedPod("gw-1-a", "gw", "ReplicaSet", false, 0, ofDeployment("gw", "1"))
	next := ownedPod("gw-2-b", "b", "ReplicaSet", false, 5*time.Second, ofDeployment("gw", "2"))
	gs := newGatewaySync()
	gs.UID = "line"
	_, _, err := u.repair(t.Context(), gs, old, toInject(createdTooEarly), podIndex{live: []*corev1.Pod{old, next}}, map[string]replacement{})
	require.NoError(t, err)
	e, ok := u.evictions.of("line")
	require.True(t, ok)
	got, over := e.replacement(podIndex{live: []*corev1.Pod{next}}, time.Time{}, false, now.Add(time.Second))
	assert.False(t, over)
	assert.False(t, got.stuck, got.wait)
}

// A StatefulSet scaled to 0 while a successor cannot start has no gateways. The reconciler must not wait for the evicted pod.
func TestScaledDownOwnerEndsWait(t *testing.T) {
	now := noon.Add(time.Minute)
	u, repair := evicting(t, &now, func(bool, string) error { return nil })
	_, _, err := repair()
	require.NoError(t, err)
	gs := newGatewaySync()
	gs.UID = "line"
	ofThis := func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelCRName: gs.Name} }
	successor := ownedPod("gw-0", "new", "StatefulSet", true, 2*time.Minute, ofThis, waits("ErrImagePull"))
	n := u.namespace("plant", nil)
	look := func(pods ...*corev1.Pod) replacement {
		t.Helper()
		replacements, err := u.replacements(t.Context(), n, inject.Candidates{Readable: []*v1alpha1.GatewaySync{gs}}, podIndex{live: pods})
		require.NoError(t, err)
		return replacements[gs.Name]
	}
	assert.True(t, look().absent, "the pod is not recreated yet")
	now = noon.Add(20 * time.Minute)
	assert.True(t, look().absent, "the pod may still be recreated")
	got := look(successor)
	assert.True(t, got.stuck)
	assert.Contains(t, got.wait, "ErrImagePull")
	now = now.Add(successorTimeout)
	assert.True(t, look().absent, "the pod may be recreated after a scale-up")

	// Another replica takes over without knowledge of the pods.
	next := &Reconciler{Config: u.Config, limiter: u.limiter, namespaces: map[string]*namespace{}, evictions: &evictionStore{lease: u.evictions.lease, now: u.Now}}
	next.evictions.load(t.Context(), u.Log)
	u, n = next, next.namespace("plant", nil)
	now = now.Add(time.Second)
	assert.True(t, look().absent)
	now = now.Add(successorTimeout)
	assert.True(t, look().absent)
	now = now.Add(time.Second)
	assert.Equal(t, replacement{}, look())
	_, ok := u.evictions.of(gs.UID)
	assert.False(t, ok)
}

func TestBlockedEvictionIsNotRecorded(t *testing.T) {
	now := noon.Add(time.Minute)
	refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	u, repair := evicting(t, &now, func(dry bool, _ string) error {
		assert.True(t, dry)
		return refused
	})
	d, _, err := repair()
	require.NoError(t, err)
	assert.Contains(t, d.message, "PodDisruptionBudget")
	_, ok := u.evictions.of("line")
	assert.False(t, ok)

	refused = apierrors.NewTooManyRequests("too many requests, please try again later", 1)
	d, _, err = repair()
	require.Error(t, err, "a failed eviction must be retried")
	assert.Empty(t, d.reason)
	assert.Equal(t, counted{"blocked": 1, "failed": 1}, u.Metrics)
}

func TestFailedEvictionIsDropped(t *testing.T) {
	now := noon.Add(time.Minute)
	u, repair := evicting(t, &now, func(dry bool, _ string) error {
		if dry {
			return nil
		}
		return apierrors.NewNotFound(policyv1.Resource("pods"), "gw-0")
	})
	_, replacements, err := repair()
	require.NoError(t, err)
	assert.Empty(t, replacements)
	_, ok := u.evictions.of("line")
	assert.False(t, ok)
}

// A gateway that has to start once more does so although the first attempt to evict its pod failed, and only once.
func TestFailedEvictionForKeyIsRetried(t *testing.T) {
	now := noon.Add(time.Minute)
	var outage error = apierrors.NewInternalError(errors.New("no leader"))
	evicted := 0
	u, _ := evicting(t, &now, func(dry bool, _ string) error {
		if dry {
			return nil
		}
		if outage == nil {
			evicted++
		}
		return outage
	})
	gs := newGatewaySync(func(gs *v1alpha1.GatewaySync) { gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{Managed: true} })
	gs.UID = "line"
	p := ownedPod("gw-0", "gw", "StatefulSet", true, 0, hasStarted)
	p.Labels = map[string]string{v1alpha1.LabelCRName: gs.Name}
	p.Status.InitContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: gatewaypod.ExitRestartGateway}
	p.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/ignition-data"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	require.NoError(t, u.Core.(*clientset.Fake).Tracker.Add(p))
	n, all, pods := u.namespace("plant", nil), inject.Candidates{Readable: []*v1alpha1.GatewaySync{gs}}, podIndex{live: []*corev1.Pod{p}}
	repair := func() error {
		t.Helper()
		replacements, err := u.replacements(t.Context(), n, all, pods)
		require.NoError(t, err)
		_, err = u.repairKey(t.Context(), n, all, p, pods, replacements)
		return err
	}
	require.Error(t, repair())
	outage, now = nil, now.Add(evictionLostAfter+time.Second)
	require.NoError(t, repair())
	assert.Equal(t, 1, evicted)
	now = now.Add(evictionLostAfter + time.Second)
	require.NoError(t, repair())
	assert.Equal(t, 1, evicted, "a pod must be evicted only once")
}

func TestReportEvictsNothing(t *testing.T) {
	now := noon.Add(time.Minute)
	u, repair := evicting(t, &now, func(bool, string) error {
		t.Error("an eviction")
		return nil
	})
	u.Repair = RepairReport
	d, _, err := repair()
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.ReasonMissingSidecar, d.reason)
}

// The controller does not simply replace a pod of a Job: an eviction counts as a failure of the Job and may exceed its limit.
func TestOwnersThatRecreatePods(t *testing.T) {
	for _, c := range []struct {
		version, kind string
		evicted       bool
	}{
		{"apps/v1", "StatefulSet", true},
		{"apps/v1", "ReplicaSet", true},
		{"apps/v1", "DaemonSet", true},
		{"v1", "ReplicationController", true},
		{"batch/v1", "Job", false},
		{"v1", "Node", false},
		{"apps.example.com/v1", "StatefulSet", false},
		{"apps/v1/x", "StatefulSet", false},
		{"", "", false},
	} {
		t.Run(c.version+" "+c.kind, func(t *testing.T) {
			now := noon.Add(time.Minute)
			evictions := 0
			u, _ := evicting(t, &now, func(dry bool, _ string) error {
				if !dry {
					evictions++
				}
				return nil
			})
			p := ownedPod("gw-0", "gw", c.kind, false, 0, func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = c.version })
			gs := newGatewaySync()
			gs.UID = "line"
			d, soon, err := u.repair(t.Context(), gs, p, toInject(createdTooEarly), podIndex{live: []*corev1.Pod{p}}, map[string]replacement{})
			require.NoError(t, err, c.kind)
			if c.evicted {
				assert.Equal(t, 1, evictions, c.kind)
				assert.Empty(t, d.reason, c.kind)
				return
			}
			assert.Zero(t, evictions, c.kind)
			assert.False(t, soon, c.kind)
			assert.Equal(t, v1alpha1.ReasonMissingSidecar, d.reason, c.kind)
			assert.Contains(t, d.message, "does not evict it, because "+c.kind+" site may not recreate it", c.kind)
		})
	}
}

// Between two answers of the API server, only the clock of this node tells the time, and an operator may change it.
func TestPodAgeAfterClockReset(t *testing.T) {
	now := noon.Add(time.Minute)
	_, repair := evicting(t, &now, func(dry bool, _ string) error {
		assert.True(t, dry)
		now = noon.Add(time.Hour) // the time in the answer
		return nil
	})
	d, _, err := repair()
	require.NoError(t, err)
	assert.Contains(t, d.message, "too old")
}

// ownedPod returns a pod with an owner, created at a time after noon.
func ownedPod(name, uid, kind string, agent bool, after time.Duration, change ...func(*corev1.Pod)) *corev1.Pod {
	p := podNamed(name, agent)
	p.UID, p.CreationTimestamp = types.UID(uid), metav1.NewTime(noon.Add(after))
	p.OwnerReferences = []metav1.OwnerReference{{UID: "owner", APIVersion: "apps/v1", Kind: kind, Name: "site", Controller: new(true)}}
	for _, c := range change {
		c(p)
	}
	return p
}

// ofSet changes the name and the UID of the owner.
func ofSet(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].UID, p.OwnerReferences[0].Name = types.UID(name), name }
}

// ofDeployment changes the owner to a ReplicaSet of a Deployment.
func ofDeployment(name, hash string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		ofSet(name + "-" + hash)(p)
		metav1.SetMetaDataLabel(&p.ObjectMeta, "pod-template-hash", hash)
	}
}

func hasStarted(p *corev1.Pod) {
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: inject.Container, Started: new(true)}}
}

func waits(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: inject.Container, Started: new(false), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}

func endsAt(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(noon.Add(after))) }
}

// Whether the next pod may be evicted depends only on the API server and the recorded evictions.
func TestReplacementOfEvictedPod(t *testing.T) {
	e := func(kind string) eviction {
		return eviction{Namespace: "plant", Pod: "site-0", UID: "old", Owner: "owner", By: kind + " site", Newest: metav1.NewTime(noon.Add(-time.Minute)), At: metav1.NewTime(noon)}
	}
	set, rolled := e("StatefulSet"), e("ReplicaSet")
	rolled.By, rolled.Deployment = "ReplicaSet gw-1", "gw"
	bare, came := e("ReplicaSet"), set
	bare.By, came.Recreated = "ReplicaSet gw-1", true
	next := ownedPod("site-1", "one", "StatefulSet", false, 5*time.Second)
	for _, c := range []struct {
		name    string
		e       eviction
		pods    podIndex
		exists  bool
		ends    time.Duration
		at      time.Duration
		over    bool
		stuck   bool
		absent  bool
		message string
	}{
		{name: "eviction not observed yet", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "old", "StatefulSet", false, 0)}}, at: time.Second, message: "pod site-0 is being evicted"},
		{name: "never evicted", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "old", "StatefulSet", false, 0)}}, at: 31 * time.Second, over: true},
		{name: "evicted pod terminating", e: set, pods: podIndex{ending: []*corev1.Pod{ownedPod("site-0", "old", "StatefulSet", false, 0, endsAt(5*time.Minute))}}, at: 5 * time.Minute, message: "is still terminating"},
		{name: "evicted pod terminating for too long", e: set, pods: podIndex{ending: []*corev1.Pod{ownedPod("site-0", "old", "StatefulSet", false, 0, endsAt(5*time.Minute))}}, at: 6*time.Minute + time.Second, stuck: true, message: "is still terminating"},
		{name: "not recreated yet", e: set, at: time.Minute, absent: true, message: "StatefulSet site has not recreated it"},
		{name: "not recreated since it ended", e: set, ends: 5 * time.Minute, at: 6 * time.Minute, absent: true, message: "has not recreated it"},
		{name: "never recreated", e: set, at: time.Minute + time.Second, absent: true, stuck: true, message: "LimitRange"},
		{name: "suggested command", e: set, at: time.Hour, absent: true, stuck: true, message: "kubectl --namespace plant describe statefulset site"},
		{name: "next pod of the StatefulSet recreated first", e: set, pods: podIndex{live: []*corev1.Pod{next}}, at: 10 * time.Second, absent: true, message: "has not recreated it"},
		{name: "recreated without agent", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "new", "StatefulSet", false, time.Second)}}, at: 2 * time.Second, stuck: true, message: "check that the API server can reach the injector"},
		{name: "recreated without request for an agent", e: set, exists: true, at: 2 * time.Second, over: true},
		{name: "recreated and unscheduled", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "new", "StatefulSet", true, time.Second)}}, at: 5 * time.Minute, message: "the agent of pod site-0 has not started"},
		{name: "recreated, image cannot be pulled", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "new", "StatefulSet", true, time.Second, waits("ErrImagePull"))}}, at: 5*time.Minute + 2*time.Second, stuck: true, message: "has not started (ErrImagePull)"},
		{name: "recreated and started", e: set, pods: podIndex{live: []*corev1.Pod{next, ownedPod("site-0", "new", "StatefulSet", true, time.Second, hasStarted)}}, at: 10 * time.Second, over: true},
		{name: "recreated owner", e: set, pods: podIndex{live: []*corev1.Pod{ownedPod("site-0", "new", "StatefulSet", true, time.Second, hasStarted, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" })}}, at: 10 * time.Second, over: true},
		{name: "older pod of the ReplicaSet", e: e("ReplicaSet"), pods: podIndex{live: []*corev1.Pod{ownedPod("gw-b", "b", "ReplicaSet", true, -time.Minute, hasStarted)}}, at: 10 * time.Second, absent: true, message: "ReplicaSet site has not recreated it"},
		{name: "younger pod of the ReplicaSet", e: e("ReplicaSet"), pods: podIndex{live: []*corev1.Pod{ownedPod("gw-c", "c", "ReplicaSet", true, 0, hasStarted)}}, at: 10 * time.Second, over: true},
		{name: "pod of the next ReplicaSet of the Deployment", e: rolled, pods: podIndex{live: []*corev1.Pod{ownedPod("gw-d", "d", "ReplicaSet", true, 0, hasStarted, ofDeployment("gw", "2"))}}, at: 10 * time.Second, over: true},
		{name: "pod of another Deployment", e: rolled, pods: podIndex{live: []*corev1.Pod{ownedPod("oven-d", "d", "ReplicaSet", true, 0, hasStarted, ofDeployment("gw-oven", "2"))}}, at: 10 * time.Second, absent: true, message: "ReplicaSet gw-1 has not recreated it"},
		{name: "pod of a ReplicaSet without Deployment", e: bare, pods: podIndex{live: []*corev1.Pod{ownedPod("gw-d", "d", "ReplicaSet", true, 0, hasStarted, ofSet("gw-2"))}}, at: 10 * time.Second, absent: true, message: "ReplicaSet gw-1 has not recreated it"},
		{name: "recreated, then absent", e: came, ends: 10 * time.Minute, at: 11 * time.Minute, absent: true, stuck: false, message: "has not recreated it"},
		{name: "recreated, then absent past the deadline", e: came, ends: 10 * time.Minute, at: 11*time.Minute + time.Second, over: true},
		{name: "successor while the evicted pod terminates", e: e("ReplicaSet"), pods: podIndex{ending: []*corev1.Pod{ownedPod("site-0", "old", "ReplicaSet", false, -time.Minute, endsAt(time.Minute))},
			live: []*corev1.Pod{ownedPod("gw-c", "c", "ReplicaSet", true, 0, hasStarted)}}, at: 10 * time.Second, message: "is still terminating"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, over := c.e.replacement(c.pods, noon.Add(c.ends), c.exists, noon.Add(c.at))
			assert.Equal(t, c.over, over)
			assert.Equal(t, []bool{c.stuck, c.absent}, []bool{got.stuck, got.absent}, got.wait)
			assert.Contains(t, got.wait, c.message)
			assert.Equal(t, over, got.wait == "" || got.wait == "pod site-0 is being evicted" && c.at > evictionLostAfter)
		})
	}
}

// Repair must also wait for other disruptions, such as a drained node or a restart of the other node of a pair.
func TestReplacementOfOtherPods(t *testing.T) {
	up := ownedPod("site-1", "one", "StatefulSet", true, 0, hasStarted)
	assert.Equal(t, replacement{}, otherReplacement(podIndex{live: []*corev1.Pod{up, podNamed("site-0", false)}}, noon))
	ends := podIndex{live: []*corev1.Pod{up}, ending: []*corev1.Pod{ownedPod("pair-0", "p", "StatefulSet", true, 0, endsAt(time.Minute))}}
	assert.Contains(t, otherReplacement(ends, noon).wait, "pod pair-0")
	assert.False(t, otherReplacement(ends, noon.Add(2*time.Minute)).stuck)
	assert.True(t, otherReplacement(ends, noon.Add(2*time.Minute+time.Second)).stuck)
	starts := podIndex{live: []*corev1.Pod{ownedPod("late-0", "l", "StatefulSet", true, 4*time.Minute), ownedPod("site-1", "two", "StatefulSet", true, 0, waits("ImagePullBackOff"))}}
	assert.False(t, otherReplacement(starts, noon.Add(5*time.Minute)).stuck)
	stuck := otherReplacement(starts, noon.Add(6*time.Minute))
	assert.True(t, stuck.stuck)
	assert.Contains(t, stuck.wait, "site-1 has not started (ImagePullBackOff)", "a pod that needs a user must be named first")
}

// The reconciler keeps few fields of a pod without a request for an agent, but must keep its deletion.
func TestSuccessorWithoutRequestEndsWait(t *testing.T) {
	w, err := watchPods(clientset.New(), "plant", func(*corev1.Pod) {}, func(error) {})
	require.NoError(t, err)
	u := &Reconciler{pods: []*podWatch{w}}
	for _, ends := range []*metav1.Time{nil, new(metav1.NewTime(noon.Add(30 * time.Second)))} {
		kept, err := slim(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "gw-0", UID: "another", DeletionTimestamp: ends}})
		require.NoError(t, err)
		require.NoError(t, w.informer.GetIndexer().Add(kept))
		assert.Equal(t, ends == nil, u.nameInUse("plant", eviction{Namespace: "plant", Pod: "gw-0", UID: "evicted"}))
	}
}

// The API server sets the creation time of a pod. By the clock of a node that is behind, every pod would look young.
func TestPodAgeUsesAPIServerClock(t *testing.T) {
	p := ownedPod("gw-0", "gw", "StatefulSet", false, 0)
	pods := podIndex{live: []*corev1.Pod{p}}
	u := &Reconciler{Config: Config{Repair: RepairEvict, WebhookReady: func() bool { return false }, Now: func() time.Time { return noon.Add(maxEvictionAge) }}}
	d, _, err := u.repair(t.Context(), newGatewaySync(), p, toInject(createdTooEarly), pods, nil)
	require.NoError(t, err)
	assert.Contains(t, d.message, "too old")
	u.Now = func() time.Time { return noon.Add(maxEvictionAge - time.Second) }
	d, soon, err := u.repair(t.Context(), newGatewaySync(), p, toInject(createdTooEarly), pods, nil)
	require.NoError(t, err)
	assert.Empty(t, d.reason)
	assert.True(t, soon, "the pod must be checked again until the webhook is ready")
	d, soon, err = u.repair(t.Context(), newGatewaySync(), p, toInject(createdTooEarly), pods, map[string]replacement{"line": {wait: "pod gw-1 ends"}})
	require.NoError(t, err)
	assert.Empty(t, d.reason)
	assert.False(t, soon, "a change of the other pod triggers the next check")
	d, _, err = u.repair(t.Context(), newGatewaySync(), p, toInject(createdTooEarly), pods, map[string]replacement{"line": {wait: "pod gw-1 ends", stuck: true}})
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.ReasonMissingSidecar, d.reason)
	assert.Contains(t, d.message, "does not evict it yet: pod gw-1 ends")
}

// NoGateways counts as healthy and ends waits, so it must not follow from an eviction.
func TestEvictedGatewayStillCounts(t *testing.T) {
	pods := podIndex{missingSuccessor: "pod site-0 was evicted"}
	gs := newGatewaySync()
	gs.Status = *leaderless(gs, pods, noon)
	assert.Equal(t, map[string]string{"Ready": "Unknown/AgentsAway", "AllGatewaysSynced": "Unknown/AgentsAway", "Reconciling": "True/AgentsAway", "SidecarInjected": "False/MissingSidecar"}, conditionsOf(&gs.Status))
	for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionSidecarInjected} {
		assert.True(t, strings.Contains(meta.FindStatusCondition(gs.Status.Conditions, c).Message, "pod site-0 was evicted"), c)
	}
	assert.Empty(t, gs.Status.LastHandledRequest)
	gs.Status = *leaderless(gs, pods, noon.Add(time.Hour))
	assert.Equal(t, "Unknown/ProgressDeadlineExceeded", conditionsOf(&gs.Status)["Ready"])
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(recordLifetime))
	assert.Equal(t, "Unknown/NoGateways", conditionsOf(&gs.Status)["Ready"])
}
