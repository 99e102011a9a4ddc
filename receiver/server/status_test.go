package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/receiver/queue"
	"stoker.io/stoker/test/cluster/kubetest"
)

const commit = "1111111111111111111111111111111111111111"

// synced sets the status of a fleet that runs the desired ref.
func synced(gs *v1alpha1.GatewaySync) {
	d, _ := desiredref.Of(gs, "")
	gs.Status.ObservedGeneration = gs.Generation
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: d.Ref, Commit: commit, RequestedAt: d.RequestedAt}
	gs.Status.LastHandledRequest = d.RequestedAt
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw-0", PodName: "gw-0", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commit}}
}

func (w *world) status(name, ref, id string, mods ...func(*http.Request)) said {
	w.Helper()
	q := url.Values{}
	if ref != "" {
		q.Set("ref", ref)
	}
	if id != "" {
		q.Set("id", id)
	}
	return w.send(http.MethodGet, "/status/"+w.ns+"/"+name+"?"+q.Encode(), "", append([]func(*http.Request){bearer(ownSecret)}, mods...)...)
}

func TestStatusOfRequestedRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	id := "test.01hz0000000000000000000002.abcdef0"
	require.Equal(t, http.StatusAccepted, w.post("plant", `{"ref":"v1","id":"`+id+`","source":"kargo"}`, bearer(ownSecret)).Code)
	// The first status after a request must not report the state before, even on a replica that has just started.
	for range 2 {
		got := w.status("plant", "v1", id)
		require.Equal(t, http.StatusOK, got.Code, got.Raw)
		assert.Equal(t, request.Progressing, got.S.Phase)
		assert.Equal(t, "v1", got.S.Ref)
		assert.NotEmpty(t, got.S.Message)
		w.start()
	}
	w.lead("plant", synced)
	got := w.status("plant", "v1", id)
	assert.Equal(t, Status{Phase: request.Succeeded, Ref: "v1", Commit: commit, Gateways: request.Count{Total: 1, Synced: 1}, Reason: v1alpha1.ReasonSynced,
		Message: "gw-0 runs v1 at 1111111"}, got.S)
	assert.Equal(t, request.Succeeded, w.status("plant", "", "").S.Phase)

	assert.Equal(t, request.Overtaken, w.status("plant", "v0", "").S.Phase, "another ref is requested")
	got = w.status("plant", "v1", "test.01hz0000000000000000000009.abcdef0")
	assert.Equal(t, request.Failed, got.S.Phase)
	assert.Contains(t, got.S.Message, "never accepted")
	assert.Equal(t, request.Succeeded, w.status("plant", "v1", "test.01hz0000000000000000000001.abcdef0").S.Phase, "an older promotion of the same ref has succeeded, too")

	for _, query := range []string{"?ref=%zz", "?ref=a&ref=b", "?id=" + longText} {
		t.Run(fmt.Sprintf("%.20s", query), func(t *testing.T) {
			got := w.send(http.MethodGet, "/status/"+w.ns+"/plant"+query, "", bearer(ownSecret))
			assert.Equal(t, http.StatusBadRequest, got.Code)
		})
	}
}

// A desired branch or tag may have moved. After another request for it, the status must not report the old result, whatever the
// sender.
func TestStatusOfCurrentRefAfterPoll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	// sequence: each request must change the time of the one before
	for _, body := range []string{`{"ref":"main"}`, `{"ref":"main"}`, ``} {
		w.lead("plant", synced)
		require.Equal(t, request.Succeeded, w.status("plant", "main", "").S.Phase)
		was := w.gs("plant").Annotations
		got := w.post("plant", body, bearer(ownSecret))
		require.Equal(t, "accepted", got.A.Result, got.Raw)
		assert.NotEqual(t, was[v1alpha1.AnnotationRequestedAt], got.A.RequestedAt)
		assert.NotContains(t, w.gs("plant").Annotations, v1alpha1.AnnotationRequestedRef, "a repeated ref must become a poll")
		assert.Equal(t, request.Progressing, w.status("plant", "main", "").S.Phase, body)
	}
	w.lead("plant", synced)
	assert.Equal(t, request.Succeeded, w.status("plant", "main", "").S.Phase)
	for i, result := range []string{"accepted", "repeated"} {
		assert.Equal(t, result, w.post("plant", `{"ref":"main","id":"build-1"}`, bearer(ownSecret)).A.Result, i)
	}
}

// P6: without an agent, no one corrects the status. The receiver must detect this from the lock.
func TestStatusWithoutLead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	w.lead("plant", synced)
	require.Equal(t, request.Succeeded, w.status("plant", "", "").S.Phase)
	require.NoError(t, kube.SyncTargets(w.admin.Dynamic, w.ns).Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	got := w.status("plant", "", "")
	assert.Equal(t, request.Progressing, got.S.Phase)
	assert.Equal(t, v1alpha1.ReasonAgentsAway, got.S.Reason)
	assert.Contains(t, got.S.Message, "no agent leads since ")
	assert.Equal(t, request.Count{Total: 1}, got.S.Gateways)
}

var longText = strings.Repeat("x", maxQuery+1)

// written sets the time at which the API server recorded the request.
func written(at time.Time) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		gs.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:stoker.io/requested-at":{}}}}`)}}
	}
}

// The clock of a client may be wrong. The age of a request counts from the time that the API server recorded.
func TestAPIServerRequestTime(t *testing.T) {
	kubetest.NotShort(t) // field managers
	t.Parallel()
	w := newWorld(t, strings.Replace(plant, "spec:", "spec:\n  progressDeadline: 5m", 1))
	for _, at := range []string{"2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"} {
		t.Run(at, func(t *testing.T) {
			patch := `{"metadata":{"annotations":{"stoker.io/requested-ref":"v1","stoker.io/requested-at":"` + at + `"}}}`
			_, err := kube.GatewaySyncs(w.admin.Dynamic, w.ns).Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-annotate"})
			require.NoError(t, err)
			gs := w.gs("plant")
			gs.CreationTimestamp = metav1.NewTime(gs.CreationTimestamp.Add(-24 * time.Hour))
			since := requestTime(gs, time.Now())
			assert.WithinDuration(t, time.Now(), since, liveness, at)
			assert.Equal(t, request.Progressing, w.status("plant", "v1", "").S.Phase, at)
		})
	}
}

func TestStatusDeadline(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	asked := func(ago time.Duration) *v1alpha1.GatewaySync {
		gs := &v1alpha1.GatewaySync{}
		gs.CreationTimestamp = metav1.NewTime(now.Add(-24 * time.Hour))
		gs.Spec.Git.Ref = "main"
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: now.Add(-ago).Format(time.RFC3339Nano)}
		return gs
	}
	working := request.Verdict{Phase: request.Progressing, Ref: "main", Reason: v1alpha1.ReasonProgressing, Message: "0 of 1"}
	empty := request.Verdict{Phase: request.Progressing, Ref: "main", Reason: v1alpha1.ReasonNoGateways, Message: "no gateway"}
	waits := func(reason v1alpha1.Reason, phase request.Phase) request.Verdict {
		v := working
		v.Phase, v.Reason = phase, reason
		return v
	}
	begun := func(ago time.Duration) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
		}
	}
	paused := request.Verdict{Phase: request.Paused, Ref: "main", Reason: v1alpha1.ReasonPaused, Message: "paused"}
	for _, c := range []struct {
		name   string
		v      request.Verdict
		ago    time.Duration
		change func(*v1alpha1.GatewaySync)
		want   request.Phase
		reason v1alpha1.Reason
	}{
		{"in progress", working, 9 * time.Minute, nil, request.Progressing, v1alpha1.ReasonProgressing},
		{"deadline exceeded", working, 10 * time.Minute, nil, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"longer deadline in the spec", working, 10 * time.Minute, func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = "1h" }, request.Progressing, v1alpha1.ReasonProgressing},
		{"stage soaks", waits(v1alpha1.ReasonRolloutSoaking, request.Progressing), time.Hour, nil, request.Progressing, v1alpha1.ReasonRolloutSoaking},
		{"stage waits for approval", waits(v1alpha1.ReasonApprovalNeeded, request.Held), time.Hour, nil, request.Progressing, v1alpha1.ReasonApprovalNeeded},
		{"gateway waits for its window", waits(v1alpha1.ReasonMaintenanceWindow, request.Progressing), time.Hour, begun(time.Hour), request.Progressing, v1alpha1.ReasonMaintenanceWindow},
		{"gateway waits for its step", waits(v1alpha1.ReasonGateClosed, request.Progressing), time.Hour, nil, request.Progressing, v1alpha1.ReasonGateClosed},
		{"open Designer", waits(v1alpha1.ReasonDesignerSessionActive, request.Held), time.Hour, nil, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"step has begun", working, time.Hour, begun(time.Minute), request.Progressing, v1alpha1.ReasonProgressing},
		{"step deadline exceeded", working, time.Hour, begun(10 * time.Minute), request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"step start in the future", working, time.Hour, begun(-time.Hour), request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"flapping agents", request.Verdict{Phase: request.Progressing, Ref: "main", Reason: v1alpha1.ReasonAgentsAway}, time.Hour, func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionReady, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))},
				{Type: v1alpha1.ConditionReconciling, LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Minute))},
			}
		}, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"no work in progress", working, time.Hour, func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}}
		}, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"paused", paused, time.Minute, nil, request.Progressing, v1alpha1.ReasonPaused},
		{"paused past the deadline", paused, 11 * time.Minute, nil, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"no gateways yet", empty, 59 * time.Second, nil, request.Progressing, v1alpha1.ReasonNoGateways},
		{"no gateways after a minute", empty, time.Minute, nil, request.Failed, v1alpha1.ReasonNoGateways},
		{"invalid request time", working, 0, func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedAt] = "noon" }, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"sender's clock is behind", working, 20 * time.Hour, written(now.Add(-time.Minute)), request.Progressing, v1alpha1.ReasonProgressing},
		{"sender's clock is behind, deadline exceeded", working, 20 * time.Hour, written(now.Add(-10 * time.Minute)), request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"sender's clock is ahead", working, -1000 * time.Hour, written(now.Add(-time.Minute)), request.Progressing, v1alpha1.ReasonProgressing},
		{"sender's clock is ahead, deadline exceeded", working, -1000 * time.Hour, written(now.Add(-10 * time.Minute)), request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"future request time without managed fields", working, -1000 * time.Hour, nil, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"recent write of other fields", working, 10 * time.Minute, func(gs *v1alpha1.GatewaySync) {
			written(now.Add(-10 * time.Minute))(gs)
			gs.ManagedFields = append(gs.ManagedFields, metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: now}, FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)}, metav1.ManagedFieldsEntry{})
		}, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"two writers, the last a minute ago", working, 20 * time.Hour, func(gs *v1alpha1.GatewaySync) {
			written(now.Add(-time.Minute))(gs)
			last := gs.ManagedFields
			written(now.Add(-time.Hour))(gs) // the order of the entries must not matter
			gs.ManagedFields = append(last, gs.ManagedFields...)
		}, request.Progressing, v1alpha1.ReasonProgressing},
		{"forged future time", working, 20 * time.Hour, written(now.Add(365 * 24 * time.Hour)), request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"API server's clock is one second ahead", working, 20 * time.Hour, written(now.Add(time.Second)), request.Progressing, v1alpha1.ReasonProgressing},
		{"agents away for a minute", request.Verdict{Phase: request.Progressing, Ref: "main", Reason: v1alpha1.ReasonAgentsAway, Since: now.Add(-time.Minute)}, time.Hour, nil, request.Progressing, v1alpha1.ReasonAgentsAway},
		{"agents away past the deadline", request.Verdict{Phase: request.Progressing, Ref: "main", Reason: v1alpha1.ReasonAgentsAway, Since: now.Add(-10 * time.Minute)}, time.Hour, nil, request.Failed, v1alpha1.ReasonProgressDeadlineExceeded},
		{"succeeded is final", request.Verdict{Phase: request.Succeeded, Reason: v1alpha1.ReasonSynced}, time.Hour, nil, request.Succeeded, v1alpha1.ReasonSynced},
		{"superseded is final", request.Verdict{Phase: request.Overtaken}, time.Hour, nil, request.Overtaken, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := asked(c.ago)
			if c.change != nil {
				c.change(gs)
			}
			st := withDeadline(gs, c.v, "", now)
			assert.Equal(t, c.want, st.Phase)
			assert.Equal(t, c.reason, st.Reason)
		})
	}
}

// The parser must accept or reject a query as a whole, and no query may make a ref that gateways do not run yet look done.
func FuzzStatusQuery(f *testing.F) {
	for _, q := range []string{"", "ref=v1&id=test.01hz0000000000000000000001.abcdef0", "ref=%zz", "ref=a&ref=b", "ref=refs%2Fheads%2Fmain", "id=;", "ref=a;id=b", "&&&", "wait=8s&commit=1111111111111111111111111111111111111111", "wait=-1s", "wait=9h", "ref=%00"} {
		f.Add(q)
	}
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Git.Ref = "main"
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main"}
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: `{"kargo":"test.01hz0000000000000000000001.abcdef0"}`}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseQuery(raw)
		if err != nil {
			return
		}
		ref, id := q.ref, q.id
		if len(ref) > maxQuery || len(id) > maxQuery || q.wait < 0 || q.wait > maxWait || q.commit != "" && len(q.commit) != 40 {
			t.Fatal("too long")
		}
		values, err := url.ParseQuery(raw)
		if err != nil || values.Get("ref") != ref || values.Get("id") != id {
			t.Fatalf("%q: %q %q", raw, ref, id)
		}
		st := withDeadline(gs, request.At(gs, request.Read(gs, q.ref, nil, time.Unix(0, 0)), q.commit), q.id, time.Unix(0, 0))
		if ref != "" && ref != "main" && st.Phase != request.Overtaken || st.Phase == request.Succeeded {
			t.Fatalf("%q: %+v", raw, st)
		}
	})
}

func TestRequestForRefAtCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	id, other := "test.01hz0000000000000000000002.abcdef0", strings.Repeat("2", 40)
	body := `{"ref":"v1","commit":"` + commit + `","id":"` + id + `","source":"kargo","project":"ignition","stage":"test","freight":"abcdef0","actor":"ann","url":"https://kargo.example/p"}`
	require.Equal(t, http.StatusAccepted, w.post("plant", body, bearer(ownSecret)).Code)
	notes := w.gs("plant").Annotations
	assert.Equal(t, commit, notes[v1alpha1.AnnotationRequestedCommit])
	assert.Equal(t, "project ignition, stage test, freight abcdef0, by ann, https://kargo.example/p", notes[v1alpha1.AnnotationRequestedFor])
	ask := func(query string) said {
		return w.send(http.MethodGet, "/status/"+w.ns+"/plant?"+query, "", bearer(ownSecret))
	}
	assert.Equal(t, request.Progressing, ask("commit="+commit+"&id="+id).S.Phase)
	w.lead("plant", synced)
	assert.Equal(t, request.Succeeded, ask("commit="+commit+"&id="+id).S.Phase)
	assert.Equal(t, request.Succeeded, ask("ref=v1&id="+id).S.Phase)

	got := ask("commit=" + other)
	assert.Equal(t, request.Overtaken, got.S.Phase, "another commit must not count as the requested one")
	assert.Contains(t, got.S.Message, "requested by kargo for project ignition, stage test, freight abcdef0, by ann")
	require.Equal(t, http.StatusAccepted, w.post("plant", strings.NewReplacer(commit, other, "0002.", "0003.").Replace(body), bearer(ownSecret)).Code)
	assert.Equal(t, request.Overtaken, ask("commit="+commit+"&id="+id).S.Phase)
	assert.Equal(t, http.StatusUnauthorized, w.post("plant", body, bearer(installSecret)).Code)
	for _, query := range []string{"commit=1111111", "commit=" + commit + "&commit=" + commit, "wait=1", "wait=-1s", "wait=11s", "wait=1s&wait=1s",
		"commit=&id=" + id, "ref=&commit=" + commit, "id=", "wait=", "commit"} {
		t.Run(fmt.Sprintf("%.20s", query), func(t *testing.T) {
			assert.Equal(t, http.StatusBadRequest, ask(query).Code)
		})
	}
	assert.Equal(t, http.StatusBadRequest, w.post("plant", `{"ref":"v1","commit":"1111111"}`, bearer(ownSecret)).Code)
}

func (w *waiters) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

func TestLongPollingStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant)
	require.Equal(t, http.StatusAccepted, w.post("plant", `{"ref":"v1"}`, bearer(ownSecret)).Code)
	ask := func(wait string) said {
		return w.send(http.MethodGet, "/status/"+w.ns+"/plant?ref=v1&wait="+wait, "", bearer(ownSecret))
	}
	t.Run("time is over", func(t *testing.T) {
		assert.Equal(t, request.Progressing, ask("100ms").S.Phase)
	})
	t.Run("too many callers wait", func(t *testing.T) {
		var leave []func()
		for range maxWaiting / 2 {
			one, ok := w.server.waiting.enter(queue.Key{Kind: kube.GatewaySync, Namespace: w.ns, Name: "plant"})
			require.True(t, ok)
			leave = append(leave, one)
		}
		began := time.Now()
		assert.Equal(t, request.Progressing, ask("10s").S.Phase)
		assert.Less(t, time.Since(began), 10*time.Second)
		other, ok := w.server.waiting.enter(queue.Key{Kind: kube.GatewaySync, Namespace: w.ns, Name: "other"})
		require.True(t, ok, "one object must not take the places of the others")
		for _, one := range append(leave, other) {
			one()
		}
	})
	t.Run("gateways sync", func(t *testing.T) {
		answers := make(chan said, 1)
		go func() { answers <- ask("10s") }()
		require.Eventually(t, func() bool { return w.server.waiting.count() == 1 }, liveness, time.Millisecond)
		w.lead("plant", synced)
		assert.Equal(t, request.Succeeded, (<-answers).S.Phase)
		assert.Zero(t, w.server.waiting.count())
	})
}
