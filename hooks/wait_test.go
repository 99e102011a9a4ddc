package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

// A rollback lapses when a fix arrives on the branch. A wait must not report this as superseded.
//
// P4 of docs/internals/threats.md: the object is deleted and recreated during the wait.
func TestWaitWhenObjectChanges(t *testing.T) {
	t.Parallel()
	good, bad, fixed := strings.Repeat("b", 40), strings.Repeat("a", 40), strings.Repeat("c", 40)
	held := &v1alpha1.GatewaySync{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{
			v1alpha1.AnnotationRequestedRef: good, v1alpha1.AnnotationRequestedUnless: bad, v1alpha1.AnnotationRequestedAt: "now",
		}},
		Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
	}
	runs := func(gs *v1alpha1.GatewaySync, ref, commit string) *v1alpha1.GatewaySync {
		gs = gs.DeepCopy()
		gs.Status.Target, gs.Status.LastHandledRequest = &v1alpha1.TargetStatus{Ref: ref, Commit: commit, RequestedAt: "now"}, "now"
		gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw", PodName: "gw", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commit}}
		return gs
	}
	working := runs(held, good, good)
	working.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewaySyncing
	lapsed := runs(held, "main", fixed)
	lapsed.Status.Request = &v1alpha1.RequestStatus{Lapsed: good + "@main unless " + bad}
	other := held.DeepCopy()
	other.Annotations[v1alpha1.AnnotationRequestedRef] = "v3"
	delete(other.Annotations, v1alpha1.AnnotationRequestedUnless)
	recreated := lapsed.DeepCopy()
	recreated.UID = "2"
	for name, c := range map[string]struct {
		then *v1alpha1.GatewaySync // what the server returns from the second read on; the first read returns working
		args []string
		code int
		said string
	}{
		"rollback lapses":                    {lapsed, nil, exit.Done, "gw runs main at ccccccc"},
		"rollback lapses, --no-rollback":     {lapsed, []string{"--no-rollback"}, exit.Done, "gw runs main at ccccccc"},
		"rollback lapses, wait for its ref":  {lapsed, []string{"--ref", good}, exit.Superseded, "desired ref is main (spec.git.ref)"},
		"other ref requested":                {runs(other, "v3", fixed), nil, exit.Superseded, "desired ref is v3"},
		"other ref requested, --no-rollback": {runs(other, "v3", fixed), []string{"--no-rollback"}, exit.Superseded, "desired ref is v3"},
		"deleted and recreated":              {recreated, nil, exit.Failed, "GatewaySync line was deleted and recreated"},
		"rollback in force":                  {runs(held, good, good), nil, exit.Done, "gw runs bbbbbbb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var looks atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if answersLock(w, r) {
					return
				}
				gs := working.DeepCopy()
				if looks.Add(1) > 1 {
					gs = c.then.DeepCopy()
				}
				gs.Status.ConfirmedAt = &metav1.Time{Time: time.Now()} // the subtests of a busy machine begin minutes after the first line of this test
				statustest.Complete(gs)
				w.Header().Set("Content-Type", "application/json")
				assert.NoError(t, json.NewEncoder(w).Encode(gs))
			}))
			t.Cleanup(server.Close)
			var said strings.Builder
			code := run(t.Context(), append([]string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "wait", "line", "--timeout", "1m"}, c.args...), &said, &said)
			require.Equal(t, c.code, code, said.String())
			assert.Contains(t, said.String(), c.said)
			assert.Equal(t, int64(2), looks.Load())
		})
	}
}

// The status says Succeeded, but whether an agent leads was not answered before the timeout.
func TestWaitWithoutAnswerAboutLead(t *testing.T) {
	t.Parallel()
	gs := &v1alpha1.GatewaySync{
		TypeMeta:   metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant"}, Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
	}
	commit := strings.Repeat("a", 40)
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commit}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw", PodName: "gw", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commit}}
	var reads atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/synctargets/") {
			<-r.Context().Done()
			return
		}
		now := gs.DeepCopy()
		if reads.Add(1) == 1 { // only the first read may take longer than the timeout
			now.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewaySyncing
		}
		now.Status.ConfirmedAt = &metav1.Time{Time: time.Now()}
		statustest.Complete(now)
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(now))
	}))
	t.Cleanup(server.Close)
	var said strings.Builder
	code := run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "wait", "line", "--timeout", "3s"}, &said, &said)
	assert.Equal(t, exit.Timeout, code, said.String())
	assert.Greater(t, reads.Load(), int64(1))
}

// Even with a very short timeout, a wait must read the status once and report it.
func TestWaitReadsStatusAtLeastOnce(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&fleet{gs: &v1alpha1.GatewaySync{
		TypeMeta:   metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", Annotations: map[string]string{v1alpha1.AnnotationRequestedAt: "earlier"}},
		Spec:       v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
	}, before: func(s *v1alpha1.GatewaySyncStatus) {
		s.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw", SyncStatus: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonGatewayUnreachable}}
	}})
	t.Cleanup(server.Close)
	var said strings.Builder
	code := run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "wait", "line", "--timeout", "1ns"}, &said, &said)
	assert.Equal(t, exit.Timeout, code)
	assert.Contains(t, said.String(), "not done after 1ns: 0 of 1 gateways run main")
}

// behind is the status of a GatewaySync whose only gateway does not run the commit.
const behind = `{observedGeneration: 1, gatewaysReady: 0/1, target: {ref: main, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa},
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Pending, reason: WaitingForGateway, message: "it does\nnot run"}]}`

// caughtUp has what changes in the status behind once the gateway runs the commit.
const caughtUp = `{gatewaysReady: 1/1, discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Synced, reason: Synced, syncedCommit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]}`

// A wait survives an outage of the API server. On a terminal, the command reports progress whenever it changes and again after the
// outage.
func TestWaitSurvivesAPIServerOutage(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	require.NoError(t, lead(t.Context(), cluster, namespace, "plant", behind))
	var out, talk program.Log
	c := newCLI(&out, &talk)
	c.interactive = true
	code := make(chan int, 1)
	go func() {
		code <- c.run(t.Context(), "stoker", []string{"wait", "plant", "--kubeconfig", cluster.Kubeconfig(), "-n", namespace, "--timeout", "5m"})
	}()
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(talk.String(), what) }, time.Minute, 10*time.Millisecond, what)
	}
	says("0 of 1 gateways run main at aaaaaaa; line-1 (pod line-1-0): it does not run\n")
	cluster.Kill(t, kubetest.APIServer)
	says("the API server does not answer, trying again")
	cluster.Start(t, kubetest.APIServer)
	require.Eventually(t, func() bool { return strings.Count(talk.String(), "0 of 1 gateways") == 2 }, time.Minute, 10*time.Millisecond, "the progress must be printed again")
	require.NoError(t, lead(t.Context(), cluster, namespace, "plant", caughtUp))
	select {
	case got := <-code:
		assert.Equal(t, exit.Done, got, talk.String())
	case <-time.After(time.Minute):
		require.Fail(t, "the wait did not end", talk.String())
	}
	assert.Equal(t, "line-1 (pod line-1-0) runs main at aaaaaaa\n", out.String())
}

// maxBinary is a ceiling, not a goal. A node pulls the binary for the first Job that runs there. About 21 MiB are unused methods
// of client-go types: text/template, which renders files as the agent does, prevents the linker from removing them. Applying
// ConfigSyncs adds only 1 MiB, because client-go's printers import most of kustomize anyway. The client for registries and the manual
// pages add 1 MiB, and so do the clients of forges, which set the status of commits. Helm's template engine adds 2.5 MiB,
// and Jsonnet 2.8 MiB.
const maxBinary = 68 << 20

func TestReleaseBinarySize(t *testing.T) {
	t.Parallel()
	program.Small(t, "hooks", maxBinary)
}

// A failure caused by gateways, operators or git would hit the previous commit too, so no rollback happens.
func TestRollbackIfNeeded(t *testing.T) {
	v := func(reason v1alpha1.Reason, failed int, rows ...v1alpha1.Reason) request.Verdict {
		v := request.Verdict{Phase: request.Failed, Reason: reason, Gateways: request.Count{Failed: failed}}
		for _, r := range rows {
			v.Behind = append(v.Behind, request.Behind{Reason: r})
		}
		return v
	}
	const (
		late       = v1alpha1.ReasonProgressDeadlineExceeded
		broken     = v1alpha1.ReasonConfigSyntaxError
		restart    = v1alpha1.ReasonPodRestartNeeded
		unverified = v1alpha1.ReasonVerificationFailed
		away       = v1alpha1.ReasonGatewayUnreachable
		login      = v1alpha1.ReasonUnsupportedRepository
	)
	for name, c := range map[string]struct {
		v               request.Verdict
		want, undecided bool
	}{
		"invalid JSON file": {v(broken, 1, broken), true, false},
		"missing source":    {v(v1alpha1.ReasonSourceMissing, 1, v1alpha1.ReasonSourceMissing), true, false},
		"invalid JSON file, other gateways in progress": {v(broken, 1, broken, v1alpha1.ReasonProgressing), true, false},
		"missing ref": {v(v1alpha1.ReasonRefNotFound, 0), false, false},
		"missing ref, earlier failures of gateways": {v(v1alpha1.ReasonRefNotFound, 1, broken), false, false},
		"credentials":               {v(v1alpha1.ReasonAuthFailed, 1, v1alpha1.ReasonAuthFailed), false, false},
		"login page instead of git": {v(login, 0), false, false},
		"login page for a gateway":  {v(login, 1, login), false, false},
		"too many refs":             {v(v1alpha1.ReasonLimitExceeded, 0, v1alpha1.ReasonProgressing), false, false},
		"too many files":            {v(v1alpha1.ReasonLimitExceeded, 1, v1alpha1.ReasonLimitExceeded), true, false},
		"pod must be recreated":     {v(restart, 1, restart), false, false},
		"pod must be recreated, another gateway may sync":      {v(restart, 1, restart, unverified), false, true},
		"pod must be recreated, another gateway failed":        {v(restart, 2, restart, broken), true, false},
		"pod must be recreated, another gateway failed before": {v(restart, 1, restart, broken), false, true},
		"deadline exceeded, gateways unavailable":              {v(late, 0, away, v1alpha1.ReasonDesignerSessionActive), false, false},
		"deadline exceeded, gateway rejects the commit":        {v(late, 0, away, unverified), true, false},
		"deadline exceeded, no gateway behind":                 {v(late, 0), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, blamesCommit(c.v))
			assert.Equal(t, c.undecided, mayChange(c.v))
		})
	}
}

// answersLock answers a request for a SyncTarget with one whose lock is held. It returns false for other requests.
func answersLock(w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.URL.Path, "/synctargets/") {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&v1alpha1.SyncTarget{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindSyncTarget},
		Spec:     v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gw-0_1", DurationSeconds: 60, Renewed: &metav1.MicroTime{Time: time.Now()}}},
	})
	return true
}

// fleet simulates an API server with one GatewaySync. Its status changes from before to after once the annotation requested-at is not "earlier".
type fleet struct {
	mu            sync.Mutex
	gs            *v1alpha1.GatewaySync
	before, after func(*v1alpha1.GatewaySyncStatus) // if after is nil, the server then aborts each GET
}

func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
	}
	if r.Method == http.MethodPatch && json.NewDecoder(r.Body).Decode(&patch) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for name, value := range patch.Metadata.Annotations {
		if delete(f.gs.Annotations, name); value != nil {
			f.gs.Annotations[name] = *value
		}
	}
	if answersLock(w, r) {
		return
	}
	f.gs.Status = v1alpha1.GatewaySyncStatus{
		ConfirmedAt: &metav1.Time{Time: time.Now()},
		LastGood:    &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("a", 40), At: metav1.Now()},
		Target:      &v1alpha1.TargetStatus{Ref: "main", Commit: strings.Repeat("b", 40), RequestedAt: f.gs.Annotations[v1alpha1.AnnotationRequestedAt]},
	}
	switch asked := f.gs.Status.Target.RequestedAt != "earlier"; {
	case !asked:
		f.before(&f.gs.Status)
	case f.after != nil:
		f.after(&f.gs.Status)
	case r.Method == http.MethodGet:
		panic(http.ErrAbortHandler)
	}
	statustest.Complete(f.gs)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(f.gs)
}

// The poll that the SyncFail hook forces restarts the deadline. The rollback must still count the expired one.
func TestRollbackIfNeededAfterDeadline(t *testing.T) {
	t.Parallel()
	row := func(reason v1alpha1.Reason) func(*v1alpha1.GatewaySyncStatus) {
		return func(s *v1alpha1.GatewaySyncStatus) {
			s.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw", SyncStatus: v1alpha1.GatewayPending, Reason: reason, Message: "why"}}
		}
	}
	late := func(reason v1alpha1.Reason) func(*v1alpha1.GatewaySyncStatus) {
		return func(s *v1alpha1.GatewaySyncStatus) {
			row(reason)(s)
			s.LastHandledRequest = "earlier"
			s.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: string(v1alpha1.ReasonProgressDeadlineExceeded), LastTransitionTime: metav1.Now(),
			}}
		}
	}
	const unverified, away = v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonGatewayUnreachable
	moved := func(s *v1alpha1.GatewaySyncStatus) { row(unverified)(s); s.Target.Commit = strings.Repeat("c", 40) }
	unseen := func(s *v1alpha1.GatewaySyncStatus) { late(unverified)(s); s.Target.RequestedAt = "earlier" }
	for name, c := range map[string]struct {
		before, after func(*v1alpha1.GatewaySyncStatus)
		said          string
	}{
		"API server unavailable":                   {late(unverified), nil, "nothing was rolled back: the API server does not answer"},
		"gateway rejects the commit":               {late(unverified), row(unverified), "rollback requested (to aaaaaaa until main moves on from bbbbbbb)"},
		"gateway stays unavailable":                {late(away), row(away), "nothing was rolled back: no verdict within"},
		"gateway in progress again":                {late(unverified), row(v1alpha1.ReasonProgressing), "nothing was rolled back: no verdict within"},
		"branch moved on":                          {late(unverified), moved, "nothing was rolled back: no verdict within"},
		"branch not polled again":                  {late(unverified), unseen, "nothing was rolled back: no verdict within"},
		"deadline not exceeded before the request": {row(unverified), row(unverified), "nothing was rolled back: no verdict within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(&fleet{before: c.before, after: c.after, gs: &v1alpha1.GatewaySync{
				TypeMeta:   metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
				ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{v1alpha1.AnnotationRequestedAt: "earlier"}},
				Spec:       v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
			}})
			t.Cleanup(server.Close)
			var said strings.Builder
			code := run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "rollback", "line", "--if-needed", "--by", "argocd", "--id", "job", "--verdict-timeout", "500ms"}, &said, &said)
			want := exit.Done
			if c.after == nil {
				want = exit.Retry
			}
			assert.Equal(t, want, code)
			assert.Contains(t, said.String(), c.said)
		})
	}
}

// An invalid ref is not the fault of a commit. The hook must succeed, or Argo CD shows its error instead of the reason.
func TestRollbackIfNeededOfInvalidRef(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&fleet{before: func(*v1alpha1.GatewaySyncStatus) {}, gs: &v1alpha1.GatewaySync{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{
			v1alpha1.AnnotationRequestedAt: "earlier", v1alpha1.AnnotationRequestedRef: "v2 .0",
		}},
		Spec:   v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
		Status: v1alpha1.GatewaySyncStatus{LastGood: &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("a", 40)}},
	}})
	t.Cleanup(server.Close)
	for name, c := range map[string]struct {
		args []string
		code int
		said string
	}{
		"as a hook":      {[]string{"--by", "argocd", "--id", "job"}, exit.Done, "nothing was rolled back: "},
		"unknown sender": {[]string{"--by", "unheard-of"}, exit.Usage, "unheard-of"},
		"invalid id":     {[]string{"--id", "a b"}, exit.Usage, "id"},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			assert.Equal(t, c.code, run(t.Context(), append([]string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "rollback", "line", "--if-needed"}, c.args...), &said, &said), &said)
			assert.Contains(t, said.String(), c.said)
		})
	}
}

func TestInvalidDeletionToConfirm(t *testing.T) {
	var said strings.Builder
	assert.Equal(t, exit.Usage, run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, "http://127.0.0.1:1"), "sync", "line", "--confirm-deletion", "xyz"}, &said, &said), &said)
	assert.Contains(t, said.String(), "--confirm-deletion must be")
}
