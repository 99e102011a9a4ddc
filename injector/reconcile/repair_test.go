package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/clientset"
)

// counted counts evictions by their result.
type counted map[string]int

func (counted) SetPodsWithoutAgent(map[v1alpha1.Reason]int) {}
func (counted) SetFleets([]types.NamespacedName, int)       {}
func (c counted) Eviction(result string)                    { c[result]++ }
func (counted) Iterated(string, string, time.Duration)      {}

// evicting returns a Reconciler with one pod to repair. Each eviction calls answer with the content of the ledger at that time.
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
	u.ledger = &ledger{lease: held(client, "me"), now: u.Now, evicted: map[types.UID]eviction{}}
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
	var asked []string
	u, repair := evicting(t, &now, func(dry bool, written string) error {
		switch {
		case dry:
			assert.Empty(t, written)
			asked = append(asked, "may it")
		default:
			assert.Contains(t, written, `"pod":"gw-0"`)
			asked = append(asked, "go")
		}
		return nil
	})
	d, replacements, err := repair()
	require.NoError(t, err)
	assert.Empty(t, d.reason)
	assert.Equal(t, []string{"may it", "go"}, asked)
	assert.NotEmpty(t, replacements["line"].wait, "no other pod of the GatewaySync may be evicted")
	_, ok := u.ledger.of("line")
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
	e, ok := u.ledger.of("line")
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
		replacements, err := u.replacements(t.Context(), n, inject.Candidates{Read: []*v1alpha1.GatewaySync{gs}}, podIndex{live: pods})
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
	next := &Reconciler{Config: u.Config, limiter: u.limiter, namespaces: map[string]*namespace{}, ledger: &ledger{lease: u.ledger.lease, now: u.Now}}
	next.ledger.load(t.Context(), u.Log)
	u, n = next, next.namespace("plant", nil)
	now = now.Add(time.Second)
	assert.True(t, look().absent)
	now = now.Add(successorTimeout)
	assert.True(t, look().absent)
	now = now.Add(time.Second)
	assert.Equal(t, replacement{}, look())
	_, ok := u.ledger.of(gs.UID)
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
	_, ok := u.ledger.of("line")
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
	_, ok := u.ledger.of("line")
	assert.False(t, ok)
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
