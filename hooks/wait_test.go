package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

// A rollback lapses when a fix arrives on the branch. A wait must not report this as superseded.
//
// P4: the object is deleted and recreated during the wait.
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
		then *v1alpha1.GatewaySync
		args []string
		code int
		said string
	}{
		"desired ref runs":                   {lapsed, nil, exit.Done, "gw runs main at ccccccc"},
		"desired ref runs, --no-rollback":    {lapsed, []string{"--no-rollback"}, exit.Done, "gw runs main at ccccccc"},
		"other commit desired":               {lapsed, []string{"--ref", good}, exit.Superseded, "desired ref is main (spec.git.ref)"},
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

const behind = `{observedGeneration: 1, gatewaysReady: 0/1, target: {ref: main, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa},
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Pending, reason: WaitingForGateway, message: "it does\nnot run"}]}`

const there = `{gatewaysReady: 1/1, discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Synced, reason: Synced, syncedCommit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]}`

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
	require.NoError(t, lead(t.Context(), cluster, namespace, "plant", there))
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
