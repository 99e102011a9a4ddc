package fleet

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// line is a plant with six gateways in three stages: gw-0, then gw-1 and gw-2 if they are approved, then the rest.
type line struct {
	*plant.Plant
	t      *testing.T
	status atomic.Int32 // of an answer to the health check of the first stage
}

func newLine(t *testing.T, change ...func(*v1alpha1.GatewaySync)) *line {
	t.Helper()
	t.Parallel()
	l := &line{t: t}
	l.status.Store(http.StatusOK)
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(l.status.Load())) }))
	t.Cleanup(health.Close)
	l.Plant = plant.New(t, 6, append([]func(*v1alpha1.GatewaySync){func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{
			{Name: "dev", Gateways: []string{"gw-0"}, PostSyncWait: "3s", HealthCheck: &v1alpha1.HealthCheck{URL: health.URL + "/StatusPing"}},
			{Name: "pilot", Gateways: []string{"gw-1", "gw-2"}, RequireApproval: true},
		}}
	}}, change...)...)
	l.Start()
	l.Converges("first", l.First)
	return l
}

// until waits until the rollout of a commit is in a phase.
func (l *line) until(commit string, phase v1alpha1.RolloutPhase) *v1alpha1.GatewaySyncStatus {
	l.t.Helper()
	var st *v1alpha1.GatewaySyncStatus
	l.Eventually(string(phase), func() bool {
		st = l.Status()
		return st.Rollout != nil && st.Rollout.Commit == commit && st.Rollout.Phase == phase
	})
	return st
}

// titles returns the title of the canary's project, and that of the other gateways, or "several" if theirs differ.
func (l *line) titles() [2]string {
	gateways := l.Gateways()
	all := [2]string{gateways[0].Title(), gateways[1].Title()}
	for _, g := range gateways[2:] {
		if g.Title() != all[1] {
			all[1] = "several"
		}
	}
	return all
}

func (l *line) annotate(name, value string) {
	l.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: value}}})
	require.NoError(l.t, err)
	_, err = kube.GatewaySyncs(l.Kube.Dynamic, l.Namespace).Patch(l.t.Context(), l.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(l.t, err)
}

func (l *line) approve(stage, commit string) {
	l.t.Helper()
	l.annotate(v1alpha1.AnnotationApproved, annotation.Approve(l.GatewaySync().Annotations[v1alpha1.AnnotationApproved], stage, commit, ""))
}

// kill kills the lead, calls then, waits for the next lead, and starts the agent again.
func (l *line) kill(then ...func()) {
	l.t.Helper()
	lead := l.Lead()
	require.NotNil(l.t, lead)
	require.Error(l.t, lead.Agent.End(l.t, syscall.SIGKILL))
	for _, f := range then {
		f()
	}
	l.Eventually("another agent leads", func() bool { next := l.Lead(); return next != nil && next != lead })
	lead.Start()
}

func (l *line) ready(st *v1alpha1.GatewaySyncStatus) string {
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	return string(c.Status) + "/" + c.Reason
}

// A commit reaches one stage after the other, and no stage too early, even if the lead dies in each phase.
func TestRolloutInStages(t *testing.T) {
	l := newLine(t)
	gw := l.Gateways()
	var mu sync.Mutex
	early := ""
	second, opened := "", false
	l.Watch(func(gs *v1alpha1.GatewaySync) {
		mu.Lock()
		defer mu.Unlock()
		for _, g := range gs.Status.DiscoveredGateways {
			if second != "" && !opened && g.Name != "gw-0" && g.SyncedCommit == second {
				early = g.Name
			}
		}
	})
	require.NoError(t, gw[0].Simulator.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: http.StatusServiceUnavailable}))
	commit := l.Push("second")
	mu.Lock()
	second = commit
	mu.Unlock()

	l.until(commit, v1alpha1.RolloutProgressing)
	l.status.Store(http.StatusInternalServerError)
	l.kill()
	gw[0].Simulator.Faults.Clear()
	st := l.until(commit, v1alpha1.RolloutSoaking)
	assert.Equal(t, [2]string{"second", "first"}, l.titles())
	assert.Equal(t, v1alpha1.OutcomeProgressing, st.Outcome.Phase)
	l.status.Store(http.StatusOK)
	l.kill()

	st = l.until(commit, v1alpha1.RolloutWaiting)
	assert.Equal(t, [2]string{"second", "first"}, l.titles())
	assert.Equal(t, "False/ApprovalNeeded", l.ready(st))
	assert.Equal(t, v1alpha1.OutcomeHeld, st.Outcome.Phase)
	assert.Equal(t, "pilot", st.Rollout.Stage)
	assert.Equal(t, l.First, st.LastGood.Commit)
	assert.Contains(t, st.LastGood.Subject, " (Test)")
	l.kill()
	l.approve("pilot", l.First)
	l.until(commit, v1alpha1.RolloutWaiting)
	mu.Lock()
	assert.Empty(t, early, "gateways of closed steps must not get the commit")
	opened = true
	mu.Unlock()
	l.approve("pilot", commit)
	l.Converges("second", commit)
	st = l.until(commit, v1alpha1.RolloutDone)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, st.Outcome.Phase)

	t.Run("rollback skips the stages", func(t *testing.T) {
		l.Branch("main", l.First)
		l.Converges("first", l.First)
		assert.Equal(t, v1alpha1.RolloutDone, l.Status().Rollout.Phase)
	})
}

// A canary fails in one of four ways. The other gateways keep what they run, and the canary goes back if the spec says so.
func TestRolloutOfBadCommit(t *testing.T) {
	back := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
	}
	stay := func(*v1alpha1.GatewaySync) {}
	for name, c := range map[string]struct {
		spec   func(*v1alpha1.GatewaySync)
		breaks func(l *line) (commit string)
		title  string // of the canary in the end
		says   string
	}{
		"failed sync": {stay, func(l *line) string {
			return l.Commit("broken", gitserver.Write("projects/line/project.json", "{"))
		}, "first", "stage dev: gw-0 ConfigSyntaxError: "},
		"failed scan": {back, func(l *line) string {
			require.NoError(l.t, l.Gateways()[0].Simulator.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: http.StatusInternalServerError}))
			return l.Push("second")
		}, "first", "stage dev: gw-0 ScanFailed: "},
		"failed health check": {back, func(l *line) string {
			l.status.Store(http.StatusServiceUnavailable)
			return l.Push("second")
		}, "first", "stage dev: the health check failed 3 times: the answer has status 503 instead of 200; 6 of 6 went back to "},
		"gateway does not stay synced": {stay, func(l *line) string {
			l.status.Store(http.StatusServiceUnavailable) // so that the stage soaks until the report below
			commit := l.Push("second")
			l.until(commit, v1alpha1.RolloutSoaking)
			l.report("gw-0", v1alpha1.GatewayError, v1alpha1.ReasonWriteFailed)
			l.status.Store(http.StatusOK)
			return commit
		}, "second", "stage dev: gw-0 WriteFailed: told by the test; 1 of 6 got "},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, c.spec)
			commit := c.breaks(l)
			st := l.until(commit, v1alpha1.RolloutAborted)
			l.Eventually(c.says, func() bool { return strings.Contains(l.Status().Rollout.Message, c.says) })
			assert.Equal(t, "False/CanaryStageFailed", l.ready(st))
			assert.True(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled))
			assert.Equal(t, v1alpha1.OutcomeFailed, st.Outcome.Phase)
			assert.Equal(t, v1alpha1.ReasonCanaryStageFailed, st.Outcome.Reason)
			assert.Equal(t, l.First, st.LastGood.Commit)
			l.Eventually("the canary has its last commit", func() bool { return l.titles() == [2]string{c.title, "first"} })
			l.kill()
			assert.Equal(t, v1alpha1.RolloutAborted, l.until(commit, v1alpha1.RolloutAborted).Rollout.Phase, "the next lead must report the same")
			l.kill(func() {
				require.NoError(t, kube.SyncTargets(l.Kube.Dynamic, l.Namespace).Delete(t.Context(), l.Name, metav1.DeleteOptions{}))
			})
			l.Eventually("the next lead writes the target again", func() bool { return l.Target().Rollout != nil })
			assert.NotEmpty(t, l.Target().Rollout.Failed)
			assert.Equal(t, v1alpha1.RolloutAborted, l.Status().Rollout.Phase)
			assert.Equal(t, [2]string{c.title, "first"}, l.titles())

			l.Gateways()[0].Simulator.Faults.Clear()
			l.status.Store(http.StatusOK)
			third := l.Push("third")
			l.approve("pilot", third)
			l.Converges("third", third)
		})
	}
}

// report replaces what an agent reports.
func (l *line) report(pod string, phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason) {
	l.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"phase": phase, "reason": reason, "message": "told by the test"}})
	require.NoError(l.t, err)
	_, err = kube.SyncReports(l.Kube.Dynamic, l.Namespace).Patch(l.t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(l.t, err)
}

// C19: A SyncTarget that a gateway's token forges opens no stage that needs an approval, and the lead takes back what it opened.
func TestForgedRollout(t *testing.T) {
	l := newLine(t)
	second := l.Push("second")
	l.until(second, v1alpha1.RolloutWaiting)
	clients, err := kube.Connect(l.Kubeconfig("default", "gw-3"), "forger")
	require.NoError(t, err)
	// sequence: one after the other
	for _, forged := range []string{`{"spec":{"rollout":{"open":3,"done":true}}}`, `{"spec":{"minFormat":1,"rollout":null}}`} {
		_, err = kube.SyncTargets(clients.Dynamic, l.Namespace).Patch(t.Context(), l.Name, types.MergePatchType, []byte(forged), metav1.PatchOptions{})
		require.NoError(t, err)
		l.Eventually("the lead restores the rollout", func() bool { r := l.Target().Rollout; return r != nil && r.Open == 1 && !r.Done })
	}
	for _, g := range l.Gateways()[1:3] {
		assert.Equal(t, "first", g.Title(), g.Name)
	}
	l.approve("pilot", second)
	l.Converges("second", second)
}

// No gateway changes before every gateway has made its dry run.
func TestDryRunOfFleet(t *testing.T) {
	l := newLine(t, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment, gs.Spec.Validation = nil, &v1alpha1.ValidationSpec{DryRunBefore: true}
	})
	bad := l.Commit("broken", gitserver.Write("projects/line/project.json", "{"))
	st := l.until(bad, v1alpha1.RolloutAborted)
	assert.Contains(t, st.Rollout.Message, "dry run: gw-")
	assert.Contains(t, st.Rollout.Message, "no gateway got "+bad[:7])
	assert.Equal(t, [2]string{"first", "first"}, l.titles())
	second := l.Push("second")
	l.Converges("second", second)
}

// F14: One gateway cannot load a commit, goes back by itself and stays there until a user retries. The others run the commit.
func TestAutomaticRollback(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	p := plant.NewAt(t, kubetest.Control(t), "goback", "line", 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true}
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true}
	})
	p.Start()
	p.Converges("first", p.First)
	broken, healthy := p.Gateways()[0], p.Gateways()[1]
	require.NoError(t, broken.Simulator.LoadFaults.Set(simulator.LoadFault{Path: "projects/line", While: `"bad"`, Hide: true}))
	bad := p.Push("bad")
	row := func() v1alpha1.DiscoveredGateway { return p.Status().DiscoveredGateways[0] }
	p.Eventually("the gateway rolls back", func() bool { return row().Reason == v1alpha1.ReasonRolledBack })
	assert.Equal(t, bad, row().AutoRollback)
	assert.Equal(t, p.First, row().SyncedCommit)
	assert.Contains(t, row().Message, "rolled back automatically (projectLoadError")
	assert.Equal(t, "first", broken.Title())
	p.Eventually("the other gateway runs the commit", func() bool { return healthy.Title() == "bad" })
	assert.Equal(t, bad, p.Status().Retry)
	assert.Equal(t, v1alpha1.OutcomeFailed, p.Status().Outcome.Phase)
	p.Eventually("an Event about the pod, and one about the GatewaySync", func() bool { return events(t, p, v1alpha1.EventAutoRollbackPerformed, bad[:7]) == 2 })
	resp, err := http.Get("http://" + broken.Agent.Log.Address("metrics") + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	assert.Contains(t, string(body), `stoker_rollback_triggered_total{by="auto"} 1`)

	require.Error(t, broken.Agent.End(t, syscall.SIGKILL))
	broken.Start()
	p.Eventually("the restarted agent holds the commit off", func() bool { return strings.Contains(broken.Agent.Log.String(), "RolledBack") })
	assert.Equal(t, "first", broken.Title())

	require.NoError(t, broken.Simulator.LoadFaults.Set())
	person := terminal(t, p, t.TempDir())
	for c := range lines.Of("docs/how-to/auto-rollback.md") {
		assert.Contains(t, person.Type(t, c.Text), "retry requested")
		p.Converges("bad", bad)
	}
	for c := range lines.Of("docs/reference/cli.md") {
		said, _ := person.Try(t, c.Text)
		assert.Contains(t, said, "there is nothing to retry")
	}
	assert.Empty(t, row().AutoRollback)
	assert.Empty(t, p.Status().Retry)
	assert.Equal(t, 2, events(t, p, v1alpha1.EventAutoRollbackPerformed, bad[:7]), "the gateway must roll back only once")
}
