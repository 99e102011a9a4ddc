package follow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

func TestLargestReport(t *testing.T) {
	w := onSharedCluster(t)
	long := strings.Repeat("x", 5000)
	s := worst(long, long, long, 1000)
	boundReport(&s)
	s.Duration, s.Gateway = "1s", strings.Repeat("g", 253)
	all := kube.SyncReports(w.clients.Dynamic, w.ns)
	made, err := all.Create(t.Context(), &v1alpha1.SyncReport{ObjectMeta: (&reporter{id: Identity{
		Namespace: w.ns, Pod: strings.Repeat("p", 63), PodUID: strings.Repeat("u", 36), GatewaySync: strings.Repeat("g", 48)}}).meta(), Status: s}, metav1.CreateOptions{})
	require.NoError(t, err)
	made.ManagedFields = nil
	raw, err := json.Marshal(made)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(raw), 4<<10)
}

func TestOutcomeOfEarlierOrder(t *testing.T) {
	id, err := plan.ParseID(commit)
	require.NoError(t, err)
	old := &loop.Order{Task: sync.Task{Target: sync.Target{Commit: id, Ref: "main", Revision: 1, Generation: 1, RequestedAt: "t1"}}}
	f := &Follower{Config: Config{Identity: Identity{Gateway: "g"}}, report: &reporter{}, current: currentOrder{order: old}}
	s := loop.State{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Message: "first sync", Commit: id, Of: old,
		Report: &sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Commit: id, Target: id}}
	r := f.composed(s)
	assert.Equal(t, v1alpha1.GatewaySynced, r.Phase)
	assert.EqualValues(t, 1, r.Revision)

	again := *old
	again.Revision, again.Generation, again.RequestedAt = 2, 2, "t2"
	f.current.order = &again // the same commit for another spec, and the agent is stopped before it checks
	for _, phase := range []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby, v1alpha1.GatewayApplied, v1alpha1.GatewayError, v1alpha1.GatewayHeld} {
		t.Run(string(phase), func(t *testing.T) {
			s.Phase = phase
			r := f.composed(s)
			assert.Equal(t, v1alpha1.GatewayPending, r.Phase)
			assert.Equal(t, v1alpha1.ReasonProgressing, r.Reason)
			assert.Equal(t, "t1", r.HandledRequest)
			assert.Equal(t, commit, r.Commit, "the report still names the commit on the disk")
		})
	}
	s.Phase, s.Of = v1alpha1.GatewaySynced, f.current.order
	r = f.composed(s)
	assert.Equal(t, v1alpha1.GatewaySynced, r.Phase)
	assert.EqualValues(t, 2, r.Revision)
	assert.Equal(t, "t2", r.HandledRequest)
}

func (r *reporter) set(status v1alpha1.SyncReportStatus) {
	r.update(func(v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus { return status })
}

// composed returns the report for a state.
func (f *Follower) composed(s loop.State) (status v1alpha1.SyncReportStatus) {
	f.report.mu.Lock()
	defer f.report.mu.Unlock()
	var was v1alpha1.SyncReportStatus
	if f.report.want != nil {
		was = *f.report.want
	}
	return f.compose(was, s)
}

// The report of an earlier agent may arrive from the API server at any time, even while a report is composed.
func TestInheritedReportDuringWrite(t *testing.T) {
	r := &reporter{now: time.Now, woken: make(chan struct{}, 1)}
	r.set(v1alpha1.SyncReportStatus{Commit: "a"})
	inherited := make(chan struct{})
	r.update(func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus {
		go func() {
			defer close(inherited)
			r.inherit(&v1alpha1.SyncReport{Status: v1alpha1.SyncReportStatus{Commit: "a", HandledForceSync: "done"}})
		}()
		select {
		case <-inherited:
		case <-time.After(50 * time.Millisecond): // inherit is blocked
		}
		return was
	})
	<-inherited
	assert.Equal(t, "done", r.want.HandledForceSync)
}

// C3: how soon a report is written depends on what has changed. A report that differs only in times is not written.
func TestReportTiming(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &reporter{now: func() time.Time { return now }, woken: make(chan struct{}, 1)}
	assert.True(t, r.next().After(now.Add(time.Minute)), "nothing to report yet")
	status := v1alpha1.SyncReportStatus{Phase: v1alpha1.GatewaySynced, Message: "one", Commit: "a"}
	due := func(want time.Time, why string) {
		t.Helper()
		r.set(status)
		assert.Equal(t, want, r.next(), why)
	}
	r.set(status)
	assert.False(t, r.next().After(now), "the stored report is read first")
	r.loaded, r.check = true, now.Add(checkEvery)
	assert.False(t, r.next().After(now), "the first report is due at once")

	r.stored, r.wrote = &v1alpha1.SyncReport{Status: status}, now
	at := metav1.NewTime(now)
	status.Started, status.Duration = &at, "3s"
	due(r.check, "a report that differs only in times is not due")
	status.Message = "two"
	due(now.Add(minorPause), "a message is written late")
	status.Drift.Files = 3
	due(now.Add(minorPause), "drift is written late")
	status.Proposal = &v1alpha1.Proposal{State: v1alpha1.ProposalSettling}
	due(now.Add(minPause), "a proposal is written soon")
	r.stored = &v1alpha1.SyncReport{Status: *status.DeepCopy()}
	status.Proposal = &v1alpha1.Proposal{State: v1alpha1.ProposalSettling, Message: "two files", Files: 2}
	due(now.Add(minorPause), "the message of a proposal is written late")
	status.Commit = "b"
	due(now.Add(minPause), "another commit is written soon")
	now = now.Add(time.Hour)
	r.check = now.Add(checkEvery)
	status.Phase = v1alpha1.GatewaySyncing
	due(now.Add(minSyncing), "a short sync is reported only by its outcome")
	r.took = 2 * time.Second
	assert.Equal(t, now.Add(20*time.Second), r.next(), "a slow API server gets fewer reports about what goes on")
	status.Phase, status.Reason = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing
	due(now.Add(20*time.Second), "nor about a sync that has not begun")
	status.Phase, status.Reason = v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway
	due(now.Add(20*time.Second), "nor about a wait for the gateway")
	status.Phase, status.Reason = v1alpha1.GatewayPending, v1alpha1.ReasonDryRun
	r.set(status)
	assert.False(t, r.next().After(now), "a stage waits for the outcome of its dry run")
	status.Phase, status.Reason = v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable
	r.set(status)
	assert.False(t, r.next().After(now), "an outcome is reported at once, if the last report is long ago")
	r.wrote = now
	assert.Equal(t, now.Add(minorPause), r.next(), "the pause of an outcome is bounded")
	r.took = 0
	r.stored = &v1alpha1.SyncReport{Status: *status.DeepCopy()}
	status.Phase, status.Reason = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing
	due(now.Add(maxReport), "a failure stays reported while the next try runs")
	status.Phase, status.Reason = v1alpha1.GatewayError, v1alpha1.ReasonScanFailed
	due(now.Add(minorPause), "and when that fails in another way")
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonRefNotFound, v1alpha1.ReasonVerificationFailed} {
		t.Run(string(reason), func(*testing.T) {
			status.Reason = reason
			due(now.Add(minPause), "an operator or a rollout waits for it")
		})
	}
	status.Phase, status.Reason = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced
	due(now.Add(minPause), "a success is reported soon")
	status.Phase, status.Reason, status.Target = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "c"
	due(now.Add(minSyncing), "another target is no further try")
	r.took = 2 * time.Second
	r.retry = now.Add(7 * time.Second)
	assert.Equal(t, r.retry, r.next(), "the delay after a failed write is kept")
}

func TestLastSyncStaysReported(t *testing.T) {
	f := &Follower{Config: Config{Identity: Identity{Gateway: "g"}}, report: &reporter{now: time.Now, woken: make(chan struct{}, 1)}}
	one := plan.ID{1}
	f.current.order = &loop.Order{Task: sync.Task{Target: sync.Target{Commit: one, Ref: "main", RequestedAt: "1", Requests: annotation.Requests{Force: "f"}}}}
	did := &sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Message: "3 added", Commit: one, Target: one, Started: time.Now(),
		Duration: time.Second, Files: sync.Counts{Added: 3, Saved: 1}, Notes: []string{"the gateway must be restarted"}, Projects: []string{"p"}, Scans: []sync.ScanOutcome{{Kind: "projects", Duration: time.Second}}}
	state := func(r *sync.Report) loop.State {
		return loop.State{Phase: r.Phase, Reason: r.Reason, Message: r.Message, Commit: r.Commit, Report: r, Of: f.current.order}
	}
	s := f.composed(state(did))
	f.report.set(s)
	assert.Equal(t, "1", s.HandledRequest)
	assert.Equal(t, "f", s.HandledForceSync)
	assert.Equal(t, "projects in 1s", s.Scan)
	assert.EqualValues(t, 1, s.Files.Saved)
	assert.Equal(t, []string{"the gateway must be restarted"}, s.Notes)
	again := f.composed(state(&sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Message: "nothing to do", Commit: one, Target: one, Started: time.Now()}))
	assert.Equal(t, onlyTimes, compare(&s, &again))

	f.current.order = &loop.Order{Task: sync.Task{Target: sync.Target{Commit: plan.ID{2}, Ref: "main", RequestedAt: "2", Requests: annotation.Requests{Force: "g"}}}}
	for reason, handled := range map[v1alpha1.Reason]bool{
		v1alpha1.ReasonGitUnreachable: false, v1alpha1.ReasonWaitingForGateway: false, v1alpha1.ReasonVerificationFailed: false,
		v1alpha1.ReasonConflictDetected: true, v1alpha1.ReasonConfigSyntaxError: true, v1alpha1.ReasonPaused: true,
	} {
		t.Run(string(reason), func(t *testing.T) {
			failed := &sync.Report{Phase: v1alpha1.GatewayError, Reason: reason, Message: "no", Commit: one, Target: plan.ID{2}, Started: time.Now(), Err: assert.AnError}
			s := f.composed(state(failed))
			assert.Equal(t, handled, s.HandledRequest == "2")
			assert.Equal(t, "f", s.HandledForceSync, "a failed sync does not handle a forced sync")
			assert.Equal(t, one.String(), s.Commit, "a report is never ahead of the disk")
			assert.Equal(t, reason == v1alpha1.ReasonWaitingForGateway, len(s.Notes) > 0, "the notes stay while the agent waits for the gateway")
		})
	}
}

// C9: no route changes anything. Every added route needs a row here.
func TestRoutesAreReadOnly(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	a := p.start()
	rows := map[string][]int{"GET /healthz": {200}, "GET /readyz": {200, 503}, "GET /state": {200}, "GET /startupz": {200, 503},
		"GET /state/audit": {200}, "GET /state/diffs/{id}": {404}}
	for _, r := range a.follower.Routes() {
		codes, ok := rows[r.Pattern]
		assert.True(t, ok, "%s is not in the table", r.Pattern)
		delete(rows, r.Pattern)
		_, path, _ := strings.Cut(r.Pattern, " ")
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			t.Run(method+" "+path, func(t *testing.T) {
				for _, credential := range []string{"", "Bearer wrong"} {
					assert.Equal(t, 405, request(t, a, method, path, credential), "%s %s", method, path)
				}
			})
		}
		assert.Contains(t, codes, request(t, a, "GET", path, ""), path)
	}
	assert.Empty(t, rows, "missing routes")
	assert.Equal(t, 404, request(t, a, "GET", "/debug/pprof/", ""))
	assert.Equal(t, 404, request(t, a, "GET", "/", ""))
}

func TestReportedProposal(t *testing.T) {
	open := &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, Branch: "gateway-changes/plant/line", Commit: commit, Number: 42,
		URL: "https://git.example.com/plant/site/pulls/42", Files: 3}
	follower := func() *Follower {
		return &Follower{Config: Config{Identity: Identity{Gateway: "g"}}, report: &reporter{}}
	}
	done := &sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced}
	t.Run("reported", func(t *testing.T) {
		r := follower().composed(loop.State{Phase: v1alpha1.GatewaySynced, Proposal: open, Report: done})
		assert.Equal(t, open, r.Proposal)
		assert.NotSame(t, open, r.Proposal)
	})
	t.Run("ended", func(t *testing.T) {
		f := follower()
		f.report.want = &v1alpha1.SyncReportStatus{Proposal: open}
		assert.Nil(t, f.composed(loop.State{Phase: v1alpha1.GatewaySynced, Report: done}).Proposal)
	})
	t.Run("kept until a restarted agent has checked", func(t *testing.T) {
		f := follower()
		f.report.want = &v1alpha1.SyncReportStatus{}
		f.report.inherit(&v1alpha1.SyncReport{Status: v1alpha1.SyncReportStatus{Commit: "other", Proposal: open}})
		assert.Equal(t, open, f.composed(loop.State{Phase: v1alpha1.GatewayPending}).Proposal)
		assert.Nil(t, f.composed(loop.State{Phase: v1alpha1.GatewaySynced, Report: done}).Proposal)
	})
	for _, c := range []struct {
		name string
		in   v1alpha1.Proposal
		want v1alpha1.Proposal
	}{
		{"long message", v1alpha1.Proposal{State: "Refused", Message: strings.Repeat("m", 5000)}, v1alpha1.Proposal{State: "Refused", Message: strings.Repeat("m", 297) + "…"}},
		{"long address", v1alpha1.Proposal{State: "Open", URL: "https://" + strings.Repeat("a", 512), Branch: "a"}, v1alpha1.Proposal{State: "Open", Branch: "a"}},
		{"invalid branch", v1alpha1.Proposal{State: "Open", Branch: "a b"}, v1alpha1.Proposal{State: "Open"}},
		{"invalid commit", v1alpha1.Proposal{State: "Open", Commit: strings.ToUpper(strings.Repeat("a", 40))}, v1alpha1.Proposal{State: "Open"}},
		{"negative numbers", v1alpha1.Proposal{State: "Open", Number: -1, Files: -1, Refused: -1}, v1alpha1.Proposal{State: "Open"}},
		{"branch and address together", v1alpha1.Proposal{State: "Open", Branch: strings.Repeat("b", 255), URL: "https://" + strings.Repeat("a", 500), Number: 1},
			v1alpha1.Proposal{State: "Open", Branch: strings.Repeat("b", 255), Number: 1}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, &c.want, boundProposal(&c.in)) })
	}
}

// gathered returns the sum of a metric's series.
func gathered(t *testing.T, a *agent, name string) float64 {
	t.Helper()
	families, err := a.reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// C8: synced content does not create series.
func TestMetricsCardinality(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	w.gatewaySync(p)
	a := p.start()
	series := func() int {
		t.Helper()
		n, err := testutil.GatherAndCount(a.reg)
		require.NoError(t, err)
		return n
	}
	var before int
	for i := range 6 {
		good := w.commit(fmt.Sprintf("good %d", i))
		branch := fmt.Sprintf("branch-%d", i)
		w.repo.Git("branch", branch, good)
		w.annotate(v1alpha1.AnnotationRequestedRef, branch)
		w.lead(targetCommit(good), func(s *v1alpha1.SyncTargetSpec) { s.Ref = branch })
		p.awaitSynced(good, fmt.Sprintf("good %d", i))
		bad := w.repo.Commit("bad", gitserver.Write(fmt.Sprintf("gw/projects/p%d/project.json", i), "{"))
		w.repo.Git("branch", "--force", branch, bad)
		w.lead(targetCommit(bad))
		p.await("the invalid commit", func(s v1alpha1.SyncReportStatus) bool {
			return s.Target == bad && s.Reason == v1alpha1.ReasonConfigSyntaxError
		})
		w.repo.Commit("fixed", gitserver.Delete(fmt.Sprintf("gw/projects/p%d/project.json", i)))
		if i == 2 {
			before = series()
		}
	}
	assert.LessOrEqual(t, series(), before+3, "six more commits and three more refs; a hiccup may bring a reason that was not there before")
	problems, err := testutil.GatherAndLint(a.reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Positive(t, gathered(t, a, "stoker_last_sync_timestamp_seconds"))
}

func request(t *testing.T, a *agent, method, path, credential string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.http.URL+path, http.NoBody)
	require.NoError(t, err)
	if credential != "" {
		r.Header.Set("Authorization", credential)
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	return res.StatusCode
}

// reportServer is an API server without reports.
func reportServer() *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): "SyncReportList"})
}

// C3, C10: a reporter sends few writes in virtual hours, whatever its input, and does not lose the last report.
func TestReportWritesOverHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := reportServer()
		var mu gosync.Mutex
		sent, broken := map[string]int{}, false
		client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			sent[a.GetVerb()]++
			if broken {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		take := func() map[string]int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			was := sent
			sent = map[string]int{}
			return was
		}
		log := &program.Log{}
		r := newReporter(kube.SyncReports(client, "ns"), Identity{Namespace: "ns", Pod: "p", PodUID: "u", GatewaySync: "site"}, slog.New(slog.NewTextHandler(log, nil)), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		stored := func() v1alpha1.SyncReportStatus {
			t.Helper()
			synctest.Wait()
			s, err := kube.SyncReports(client, "ns").Get(context.WithoutCancel(ctx), "p")
			require.NoError(t, err)
			return s.Status
		}
		status := v1alpha1.SyncReportStatus{Format: 1, Gateway: "g", Phase: v1alpha1.GatewaySynced, Message: "0"}
		for i := range 3600 {
			at := metav1.NewTime(time.Now())
			status.Started, status.Duration = &at, fmt.Sprint(i)
			r.set(status)
			time.Sleep(time.Second)
		}
		got := take()
		assert.Equal(t, 1, got["create"])
		assert.Zero(t, got["update"], "a changed time alone is not written")
		assert.LessOrEqual(t, got["get"], 10, "the reporter checks now and then that the report exists")

		for i := range 600 {
			status.Message = fmt.Sprint(i)
			r.set(status)
			time.Sleep(time.Second)
		}
		got = take()
		assert.LessOrEqual(t, got["update"], 61)
		assert.GreaterOrEqual(t, got["update"], 30)
		for i := range 600 {
			status.Commit = fmt.Sprintf("%040d", i)
			r.set(status)
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, take()["update"], 61, "at most one write a second")

		mu.Lock()
		broken = true
		mu.Unlock()
		status.Message = "while it was away"
		r.set(status)
		time.Sleep(10 * time.Minute)
		got = take()
		tries := got["get"] + got["update"] + got["create"]
		assert.LessOrEqual(t, tries, 35)
		assert.GreaterOrEqual(t, tries, 15)
		mu.Lock()
		broken = false
		mu.Unlock()
		time.Sleep(maxReport + maxReport/10 + minorPause)
		assert.Equal(t, "while it was away", stored().Message)

		require.NoError(t, client.Resource(kube.SyncReport.Resource()).Namespace("ns").Delete(ctx, "p", metav1.DeleteOptions{}))
		time.Sleep(checkEvery + checkEvery/10 + 30*time.Second)
		assert.Less(t, checkEvery+checkEvery/10+30*time.Second, v1alpha1.DefaultProgressDeadline, "the check comes before the lead's deadline")
		assert.Equal(t, "while it was away", stored().Message, "a deleted report is written again")

		status.Phase = v1alpha1.GatewaySyncing
		r.set(status)
		time.Sleep(minSyncing / 2)
		status.Phase, status.Message = v1alpha1.GatewaySynced, "brief"
		r.set(status)
		time.Sleep(minorPause)
		take()
		status.Phase = v1alpha1.GatewaySyncing
		r.set(status)
		time.Sleep(2 * minSyncing)
		assert.Equal(t, v1alpha1.GatewaySyncing, stored().Phase, "a long sync is reported")
		assert.Equal(t, 1, take()["update"])
		status.Phase, status.Message = v1alpha1.GatewaySynced, "the end"
		r.set(status)
		cancel()
		synctest.Wait()
		r.flush(context.WithoutCancel(ctx))
		assert.Equal(t, "the end", stored().Message, "the last report is written at shutdown")
	})
}

// An API server that was restored from a backup serves an old report, and does not notify the agent.
func TestReportRewrittenAfterEtcdRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := reportServer()
		var sent atomic.Int64
		client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { sent.Add(1); return false, nil, nil })
		reports := kube.SyncReports(client, "ns")
		r := newReporter(reports, Identity{Namespace: "ns", Pod: "p", PodUID: "u", GatewaySync: "site"}, slog.New(slog.DiscardHandler), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		r.set(v1alpha1.SyncReportStatus{Format: 1, Gateway: "g", Phase: v1alpha1.GatewaySynced, Message: "of today"})
		time.Sleep(time.Minute)

		older, err := reports.Get(ctx, "p")
		require.NoError(t, err)
		older.Status.Message = "of the backup"
		_, err = reports.Update(ctx, older, metav1.UpdateOptions{})
		require.NoError(t, err)
		sent.Store(0)
		time.Sleep(checkEvery + checkEvery/10 + minorPause) // a change of the message alone is written after ten seconds
		synctest.Wait()
		assert.EqualValues(t, 2, sent.Load(), "one read and one write")
		now, err := reports.Get(ctx, "p")
		require.NoError(t, err)
		assert.Equal(t, "of today", now.Status.Message)
		cancel()
		synctest.Wait()
	})
}
