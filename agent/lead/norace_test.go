//go:build !race

// The tests of this file enumerate cases and are not concurrent; the race detector would only slow them down.

package lead

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/limits"
)

// intruder writes objects as an attacker with the token of one gateway could.
type intruder struct {
	*site
	kind kube.Kind
	good map[string]any // valid spec or status, as an agent writes it
	part string
}

// write puts a case into an object and reports whether the API server admits it.
func (i *intruder) write(t *testing.T, c limits.Case) bool {
	t.Helper()
	object := map[string]any{i.part: (&unstructured.Unstructured{Object: i.good}).DeepCopy().Object}
	if !c.Put(object) {
		return false
	}
	patch, err := json.Marshal([]any{map[string]any{"op": "add", "path": "/" + i.part, "value": object[i.part]}})
	require.NoError(t, err)
	var sub []string
	if i.kind == kube.GatewaySync {
		sub = append(sub, "status")
	}
	_, err = i.admin.Dynamic.Resource(i.kind.Resource()).Namespace(i.ns).Patch(t.Context(), "site", types.JSONPatchType, patch, metav1.PatchOptions{}, sub...)
	if err != nil {
		require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%v", err)
	}
	return err == nil
}

// untyped returns a value as a dynamic client decodes it.
func untyped(t *testing.T, v any) map[string]any {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	var u unstructured.Unstructured
	require.NoError(t, u.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"x","v":`+string(data)+`}`)))
	return u.Object["v"].(map[string]any)
}

// C13: whatever SyncTarget the API server admits, another agent takes over after a minute and can write it.
func TestTakeoverOfAnySyncTarget(t *testing.T) {
	t.Parallel()
	s := newUnwatchedSite(t, kubetest.Control(t), 1)
	now := noon
	l, err := New(Config{Namespace: s.ns, GatewaySync: "site", Pod: "gw-0", Clients: s.admin, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	require.NoError(t, err)
	gs := s.sync()
	at, micro := metav1.NewTime(noon), metav1.NewMicroTime(noon)
	target := &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "site", Namespace: s.ns, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: "site", UID: gs.UID}}},
		Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Revision: 3, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, ResolvedAt: &at,
			RequestedAt: "1", Requests: annotation.Hash(gs), Problem: &v1alpha1.TargetProblem{Generation: 1, Reason: v1alpha1.ReasonAuthFailed, Message: "m"},
			Lead: v1alpha1.LeadRecord{Holder: "other_1", Acquired: &micro, Renewed: &micro, DurationSeconds: 15, Transitions: 4}}}
	_, err = s.targets().Create(t.Context(), target, metav1.CreateOptions{})
	require.NoError(t, err)
	hostile := &intruder{s, kube.SyncTarget, untyped(t, target.Spec), "spec"}
	admitted := 0
	for _, c := range limits.Of(t, "synctargets", "spec") {
		if !hostile.write(t, c) {
			continue
		}
		admitted++
		l.Saw(s.targets().Get(t.Context(), "site"))
		now = now.Add(v1alpha1.MaxLeadDuration + time.Second)
		if !assert.True(t, l.lockWatch.state().free, c.Name) {
			continue
		}
		assert.NoError(t, takeOver(t, l, gs, func() error {
			return l.lock.write(t.Context(), func(spec *v1alpha1.SyncTargetSpec) {
				setTarget(spec, v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Generation: 1, Ref: "main", Commit: commitB}, 0)
			})
		}), c.Name)
		is, err := s.targets().Get(t.Context(), "site")
		if assert.NoError(t, err, c.Name) {
			assert.Equal(t, commitB, is.Spec.Commit, c.Name)
			assert.Equal(t, v1alpha1.TargetFormat, is.Spec.Format, c.Name)
			assert.Empty(t, is.Spec.Lead.Holder, c.Name)
			assert.Positive(t, is.Spec.Revision, c.Name)
		}
	}
	assert.Greater(t, admitted, 60)
}

// C13: whatever status the API server admits, every reader can still read the spec, and the next summary replaces the status.
func TestSummaryOverAnyStatus(t *testing.T) {
	t.Parallel()
	s := newUnwatchedSite(t, kubetest.Control(t), 1)
	scene := newFleet(1)
	scene.Target.Generation = s.sync().Generation
	at := metav1.NewTime(noon)
	scene.GatewaySync = s.sync()
	scene.GatewaySync.Status = v1alpha1.GatewaySyncStatus{
		LastGood: &v1alpha1.CommitRecord{Ref: "v1", Commit: commitB, At: at}, History: []v1alpha1.CommitRecord{{Ref: "v1", Commit: commitB, At: at}},
		Request:    &v1alpha1.RequestStatus{Over: "v1@main", Lapsed: "v0@main"},
		Conditions: []metav1.Condition{{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "ByBob", LastTransitionTime: at}},
	}
	good := status.Summarize(scene).Status
	good.Request = scene.GatewaySync.Status.Request
	hostile := &intruder{s, kube.GatewaySync, untyped(t, good), "status"}
	admitted := 0
	for _, c := range limits.Of(t, "gatewaysyncs", "status") {
		if !hostile.write(t, c) {
			continue
		}
		admitted++
		gs, err := s.syncs().Get(t.Context(), "site")
		if !assert.NoError(t, err, c.Name) {
			continue
		}
		assert.Equal(t, "main", gs.Spec.Git.Ref)
		_, err = desiredref.Of(gs, "")
		assert.NoError(t, err, c.Name)
		is, err := s.summed(t, scene, gs)
		if assert.NoError(t, err, c.Name) {
			assert.Nil(t, is.Status.Unread, c.Name)
			assert.Equal(t, "True/Synced", condition(&is.Status, v1alpha1.ConditionReady), c.Name)
			assert.Equal(t, commitA, is.Status.LastGood.Commit, c.Name)
		}
	}
	assert.Greater(t, admitted, 150)
}

// summed writes the status that Summarize returns for gs.
func (s *site) summed(t *testing.T, seen status.Seen, gs *v1alpha1.GatewaySync) (*v1alpha1.GatewaySync, error) {
	t.Helper()
	seen.GatewaySync = gs
	sum := status.Summarize(seen)
	change, err := kube.StatusDifference(&gs.Status, &sum.Status)
	require.NoError(t, err)
	if change == nil {
		return gs, nil
	}
	patch, err := kube.StatusPatch(gs, change)
	require.NoError(t, err)
	return s.syncs().Patch(t.Context(), "site", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}

// C13: whatever report the API server admits, the lead still writes the status of the other gateways.
func TestSummaryOfAnyReport(t *testing.T) {
	t.Parallel()
	s := newUnwatchedSite(t, kubetest.Control(t), 1)
	scene := newFleet(2)
	scene.Target.Generation = s.sync().Generation
	hostileReport := scene.Reports[0]
	hostileReport.Status.Projects, hostileReport.Status.Drift = []string{"a"}, v1alpha1.DriftFiles{Files: 1, Paths: []string{"a"}}
	hostileReport.Status.Files = v1alpha1.FileCounts{Added: 1, Modified: 1, Deleted: 1, Kept: 1}
	made := hostileReport.DeepCopy()
	made.Name, made.Namespace, made.OwnerReferences = "site", s.ns, nil
	_, err := s.reports().Create(t.Context(), made, metav1.CreateOptions{})
	require.NoError(t, err)
	admitted := 0
	for _, phase := range []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayError} {
		t.Run(string(phase), func(t *testing.T) {
			made.Status.Phase = phase
			hostile := &intruder{s, kube.SyncReport, untyped(t, made.Status), "status"}
			for _, c := range limits.Of(t, "syncreports", "status") {
				if !hostile.write(t, c) {
					continue
				}
				admitted++
				seen := scene
				report, err := s.reports().Get(t.Context(), "site")
				if bad, ok := errors.AsType[*kube.UndecodableError](err); ok {
					seen.Reports, seen.Unreadable = seen.Reports[1:], map[string]error{hostileReport.Name: bad}
				} else {
					require.NoError(t, err, c.Name)
					report.Name, report.OwnerReferences = hostileReport.Name, hostileReport.OwnerReferences
					seen.Reports = []*v1alpha1.SyncReport{report, seen.Reports[1]}
				}
				is, err := s.summed(t, seen, s.sync())
				if assert.NoError(t, err, c.Name) {
					assert.Nil(t, is.Status.Unread, c.Name)
					assert.Contains(t, []string{"1/2", "2/2", "0/2", "0/1"}, is.Status.GatewaysReady, c.Name)
				}
			}
		})
	}
	assert.Greater(t, admitted, 160)
}

// Every lead reaches the same result: all state is in the objects, because leads may change at any time.
func TestSuccessiveLeadsAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("enumerates")
	}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			s := &story{fakeFleet: newFakeFleet(t, 1)}
			s.GatewaySync.Spec.Polling.Interval = "1s"
			s.GatewaySync.Annotations = map[string]string{}
			for _, ref := range storyRefs {
				s.branches.Store(ref, commitA)
			}
			for n := 0; n < 24; {
				s.leadWith(s.ask, func() {
					for range 1 + r.IntN(4) {
						if n++; n > 1 {
							s.step(r, n)
						}
						time.Sleep(10 * time.Second)
						target := s.target()
						require.Equal(t, s.want(), target.Ref, "seed %d: %s", seed, strings.Join(s.log, ", "))
						require.Equal(t, s.branch(s.want()), target.Commit, "seed %d: %s", seed, strings.Join(s.log, ", "))
						gs, _ := s.sync()
						require.Equal(t, gs.Generation, target.Generation)
						require.Equal(t, gs.Annotations[v1alpha1.AnnotationRequestedAt], target.RequestedAt)
						require.Equal(t, s.want(), gs.Status.Target.Ref)
					}
				})
			}
		})
	}
}
