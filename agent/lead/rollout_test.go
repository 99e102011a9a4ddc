package lead

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/status"
)

const commitC = "cccccccccccccccccccccccccccccccccccccccc"

// line is a fleet of six gateways that ran commitA, and what a lead sees of it. It has three steps: the stages dev and pilot, and then the rest.
type line struct {
	observed
	at map[string]string          // the commit on each gateway
	as map[string]status.Standing // what a gateway reports instead of Synced
}

func newLine() *line {
	gs := newFleet(0).GatewaySync
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA, At: metav1.NewTime(noon)}
	gs.Status.History = []v1alpha1.CommitRecord{*gs.Status.LastGood}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{
		{Name: "dev", Gateways: []string{"dev-*"}, PostSyncWait: "1m"},
		{Name: "pilot", Gateways: []string{"pilot-*"}, RequireApproval: true},
	}}
	l := &line{at: map[string]string{}, as: map[string]status.Standing{}}
	l.gs, l.now = gs, noon
	for _, name := range []string{"dev-1", "dev-2", "pilot-1", "pilot-2", "line-1", "line-2"} {
		l.at[name] = commitA
	}
	l.published = v1alpha1.SyncTargetSpec{Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, Revision: 7}
	l.published.Rollout = &v1alpha1.TargetRollout{Revision: 5, Rules: rulesOf(gs), Steps: 3, Open: 3, Done: true}
	l.want = l.published
	return l
}

// sync is what the agents do: those of open steps sync.
func (l *line) sync() {
	for name := range l.at {
		switch r := l.published.Rollout; {
		case l.as[name].Phase != "":
		case r != nil && r.Back && (schedule.StepOf(l.gs, name) <= int(r.Open) || l.at[name] == l.published.Commit):
			l.at[name] = r.From.Commit
		case r != nil && r.Failed != "": // the rollout does not continue
		case r == nil || schedule.StepOf(l.gs, name) <= int(r.Open):
			l.at[name] = l.published.Commit
		}
	}
}

// lead decides once, and publishes target and status.
func (l *line) lead() progress {
	l.gateways = nil
	for name, at := range l.at {
		g := status.Standing{Name: name, Label: name, Commit: at, Phase: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonGateClosed}
		switch as, told := l.as[name]; {
		case told:
			g.Phase, g.Reason, g.Message, g.Planned, g.Stale, g.AutoRollback = as.Phase, as.Reason, as.Message, as.Planned, as.Stale, as.AutoRollback
		case at == l.published.Commit && (l.published.Rollout == nil || schedule.StepOf(l.gs, name) <= int(l.published.Rollout.Open)):
			g.Phase, g.Reason, g.Synced = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, true
		}
		l.gateways = append(l.gateways, g)
	}
	slices.SortFunc(l.gateways, func(a, b status.Standing) int {
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	remember := rolling{failing: l.failing, stale: l.stale}
	remember.recordFailing(l.gateways, l.now)
	l.failing, l.stale = remember.failing, remember.stale
	p := advance(l.observed)
	l.want.Generation, l.want.Rollout = l.gs.Generation, p.target
	next := l.published
	setTarget(&next, l.want, 0)
	remember.recordDecision(p, next)
	l.failing = remember.failing
	l.published, l.want = next, next
	l.gs.Status.Rollout, l.gs.Status.ObservedGeneration = p.status, l.gs.Generation
	return p
}

// settle lets lead and agents act until nothing changes.
func (l *line) settle() progress {
	var p progress
	// sequence: lead and agents answer each other
	for range 20 {
		p = l.lead()
		l.sync()
	}
	return p
}

// annotate sets an annotation of the GatewaySync.
func (l *line) annotate(name, value string) {
	if l.gs.Annotations == nil {
		l.gs.Annotations = map[string]string{}
	}
	l.gs.Annotations[name] = value
}

func (l *line) approve(stage string) {
	l.annotate(v1alpha1.AnnotationApproved, annotation.Approve(l.gs.Annotations[v1alpha1.AnnotationApproved], stage, l.want.Commit, ""))
}

func (l *line) fails(name string, reason v1alpha1.Reason) {
	l.as[name] = status.Standing{Phase: v1alpha1.GatewayError, Reason: reason, Message: "so"}
}

// failsAt makes a gateway fail to load a commit that is on its disk.
func (l *line) failsAt(name, commit string, reason v1alpha1.Reason) {
	l.at[name] = commit
	l.fails(name, reason)
}

// having returns the gateways that have a commit, sorted.
func (l *line) having(commit string) []string {
	var names []string
	for name, at := range l.at {
		if at == commit {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestRolloutStages(t *testing.T) {
	l := newLine()
	l.want.Commit = commitB
	p := l.settle()
	assert.Equal(t, v1alpha1.RolloutSoaking, p.status.Phase)
	assert.Equal(t, []string{"dev-1", "dev-2"}, l.having(commitB))
	assert.Equal(t, "stage dev runs bbbbbbb and waits until it is 2026-01-02T12:01:00Z", p.status.Message)
	assert.Equal(t, noon.Add(time.Minute), p.again)
	assert.Equal(t, &v1alpha1.TargetCommit{Ref: "main", RefName: "refs/heads/main", Commit: commitA}, l.published.Rollout.From)
	assert.EqualValues(t, 8, l.published.Revision, "opening a step is not a new revision")
	assert.EqualValues(t, 8, l.published.Rollout.Revision)

	l.now = l.now.Add(time.Minute)
	p = l.settle()
	assert.Equal(t, v1alpha1.RolloutWaiting, p.status.Phase)
	assert.Contains(t, p.status.Message, "; to approve: stoker approve "+l.gs.Name+" "+p.status.Stage+" --commit ")
	assert.Equal(t, "pilot", p.status.Stage)
	assert.Equal(t, []string{"dev-1", "dev-2"}, l.having(commitB))

	l.approve("pilot")
	p = l.settle()
	assert.Equal(t, v1alpha1.RolloutDone, p.status.Phase)
	assert.Len(t, l.having(commitB), 6)
	assert.True(t, l.published.Rollout.Done)
	assert.EqualValues(t, 8, l.published.Revision)
}

func (l *line) pauses(name string) {
	l.as[name] = status.Standing{Phase: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonPaused}
}

func TestRolloutAbortsOrWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *line)
		after  time.Duration
		phase  v1alpha1.RolloutPhase
		says   string
	}{
		"a commit that cannot be rendered": {func(l *line) { l.fails("dev-1", v1alpha1.ReasonTemplateFailed) }, 0, v1alpha1.RolloutAborted, "stage dev: dev-1 TemplateFailed: so; "},
		"a gateway that rolled back":       {func(l *line) { l.fails("dev-1", v1alpha1.ReasonRolledBack) }, 0, v1alpha1.RolloutAborted, "stage dev: dev-1 RolledBack: so; "},
		"a recent scan failure":            {func(l *line) { l.failsAt("dev-1", commitB, v1alpha1.ReasonScanFailed) }, patience - time.Second, v1alpha1.RolloutProgressing, "step 1 of 3, stage dev: 1 of 2 gateways run bbbbbbb; waits for dev-1 (ScanFailed)"},
		"a lasting scan failure":           {func(l *line) { l.failsAt("dev-1", commitB, v1alpha1.ReasonScanFailed) }, patience, v1alpha1.RolloutAborted, "stage dev: dev-1 ScanFailed: so; "},
		"a lasting verification failure":   {func(l *line) { l.failsAt("dev-1", commitB, v1alpha1.ReasonVerificationFailed) }, patience, v1alpha1.RolloutAborted, "stage dev: dev-1 VerificationFailed: so; "},
		"a scan failure of another commit": {func(l *line) { l.failsAt("dev-1", commitA, v1alpha1.ReasonScanFailed) }, time.Hour, v1alpha1.RolloutProgressing, "waits for dev-1 (ScanFailed)"},
		"a scan failure after an automatic rollback": {func(l *line) {
			l.as["dev-1"] = status.Standing{Phase: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed, Message: "so", AutoRollback: commitB}
		}, patience, v1alpha1.RolloutAborted, "stage dev: dev-1 ScanFailed: so; "},
		"a verification failure of another commit": {func(l *line) { l.failsAt("dev-1", commitA, v1alpha1.ReasonVerificationFailed) }, time.Hour, v1alpha1.RolloutProgressing, "waits for dev-1 (VerificationFailed)"},
		"git unreachable":                          {func(l *line) { l.fails("dev-1", v1alpha1.ReasonGitUnreachable) }, time.Hour, v1alpha1.RolloutProgressing, "step 1 of 3"},
		"gateway unreachable":                      {func(l *line) { l.fails("dev-1", v1alpha1.ReasonGatewayUnreachable) }, time.Hour, v1alpha1.RolloutProgressing, "step 1 of 3"},
		"a Designer is open": {func(l *line) {
			l.as["dev-1"] = status.Standing{Phase: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonDesignerSessionActive}
		}, time.Hour, v1alpha1.RolloutProgressing, "step 1 of 3"},
		"a gateway of a closed step":         {func(l *line) { l.fails("line-1", v1alpha1.ReasonTemplateFailed) }, 30 * time.Second, v1alpha1.RolloutSoaking, "stage dev runs"},
		"a gateway fails during the soak":    {func(l *line) { l.settle(); l.fails("dev-1", v1alpha1.ReasonGatewayUnreachable) }, patience, v1alpha1.RolloutAborted, "stage dev: dev-1 GatewayUnreachable: so; "},
		"git fails during the soak":          {func(l *line) { l.settle(); l.fails("dev-1", v1alpha1.ReasonGitTimeout) }, time.Hour, v1alpha1.RolloutProgressing, "step 1 of 3"},
		"the health check fails three times": {func(l *line) { l.checks(false, 3) }, 0, v1alpha1.RolloutAborted, "stage dev: the health check failed 3 times: refused; "},
		"the health check fails twice":       {func(l *line) { l.checks(false, 2) }, time.Hour, v1alpha1.RolloutSoaking, "stage dev runs bbbbbbb and waits until its health check succeeds (now: refused)"},
		"the health check was not sent":      {func(l *line) { l.checks(false, 0); l.health = health{} }, time.Hour, v1alpha1.RolloutSoaking, "stage dev runs bbbbbbb and waits until its health check succeeds"},
		"the health check succeeds":          {func(l *line) { l.checks(true, 0) }, time.Minute, v1alpha1.RolloutWaiting, "stage pilot waits"},
		"a health check of another step":     {func(l *line) { l.checks(true, 0); l.health.step = "x" }, time.Hour, v1alpha1.RolloutSoaking, "stage dev runs"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			l.want.Commit = commitB
			c.change(l)
			l.settle()
			l.now = l.now.Add(c.after)
			p := l.settle()
			assert.Equal(t, c.phase, p.status.Phase)
			assert.Contains(t, p.status.Message, c.says)
			for _, name := range l.having(commitB) {
				assert.Contains(t, []string{"dev-1", "dev-2"}, name)
			}
			assert.Equal(t, c.phase == v1alpha1.RolloutAborted, l.published.Rollout.Failed != "")
		})
	}
}

// An agent that fails to load one commit and then the next may report nothing in between.
func TestPatienceBeginsAgain(t *testing.T) {
	for name, next := range map[string]func(l *line){
		"another target": func(l *line) {
			l.failsAt("dev-1", commitA, v1alpha1.ReasonScanFailed)
			l.lead()
			l.now = l.now.Add(time.Hour)
			l.want.Commit = commitB
			l.lead()
			l.lead()
			l.at["dev-1"] = commitB
		},
		"the commit arrives later": func(l *line) {
			l.failsAt("dev-1", commitA, v1alpha1.ReasonScanFailed)
			l.want.Commit = commitB
			l.settle()
			l.now = l.now.Add(time.Hour)
			l.lead()
			l.at["dev-1"] = commitB
		},
		"another attempt": func(l *line) {
			l.want.Commit = commitB
			l.lead()
			l.failsAt("dev-1", commitB, v1alpha1.ReasonScanFailed)
			l.lead()
			l.now = l.now.Add(time.Hour)
			require.Equal(t, v1alpha1.RolloutAborted, l.lead().status.Phase)
			l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(commitB, noon))
			l.lead()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			next(l)
			assert.Equal(t, v1alpha1.RolloutProgressing, l.lead().status.Phase)
			l.now = l.now.Add(patience)
			assert.Equal(t, v1alpha1.RolloutAborted, l.lead().status.Phase)
		})
	}
}

// checks gives the first stage a health check, with these results.
func (l *line) checks(ok bool, failures int) {
	l.gs.Spec.Deployment.Stages[0].HealthCheck = &v1alpha1.HealthCheck{URL: "http://dev/StatusPing"}
	p := l.settle()
	l.health = health{step: p.probe, ok: ok, failures: failures}
	if !ok {
		l.health.lastProblem = "refused"
	}
}

func TestAbortedRollout(t *testing.T) {
	failed := func(back bool) *line {
		l := newLine()
		if back {
			l.gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
		}
		l.want.Commit = commitB
		l.settle()
		l.fails("dev-1", v1alpha1.ReasonTemplateFailed)
		l.settle()
		delete(l.as, "dev-1")
		require.NotEmpty(t, l.published.Rollout.Failed)
		return l
	}
	t.Run("canaries stay", func(t *testing.T) {
		l := failed(false)
		p := l.settle()
		assert.Equal(t, []string{"dev-1", "dev-2"}, l.having(commitB))
		assert.Equal(t, "stage dev: dev-1 TemplateFailed: so; 2 of 6 got bbbbbbb and stay for inspection, 4 never got it", p.status.Message)
		assert.EqualValues(t, 8, l.published.Revision, "the target keeps its revision")
	})
	t.Run("a canary without the commit", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		l.as["dev-2"] = status.Standing{Phase: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonDesignerSessionActive}
		l.settle()
		l.fails("dev-1", v1alpha1.ReasonTemplateFailed)
		l.settle()
		clear(l.as)
		p := l.settle()
		assert.Equal(t, []string{"dev-1"}, l.having(commitB))
		assert.Equal(t, "stage dev: dev-1 TemplateFailed: so; 1 of 6 got bbbbbbb and stay for inspection, 5 never got it", p.status.Message)
	})
	t.Run("canaries go back", func(t *testing.T) {
		l := failed(true)
		p := l.settle()
		assert.Empty(t, l.having(commitB))
		assert.Equal(t, "stage dev: dev-1 TemplateFailed: so; 6 of 6 went back to aaaaaaa or never left it", p.status.Message)
		assert.EqualValues(t, 9, l.published.Revision)
	})
	t.Run("canaries go back from a later stage", func(t *testing.T) {
		l := failed(true)
		l.gs.Spec.Deployment.Stages[0].Gateways = []string{"dev-2"} // dev-1 has not gone back yet
		assert.Contains(t, l.lead().status.Message, "5 of 6 went back to aaaaaaa or never left it")
		assert.Contains(t, l.settle().status.Message, "6 of 6 went back")
		assert.Empty(t, l.having(commitB))
	})
	t.Run("canaries stay in a later stage", func(t *testing.T) {
		l := failed(false)
		l.gs.Spec.Deployment.Stages[0].Gateways = []string{"dev-1"}
		assert.Contains(t, l.settle().status.Message, "2 of 6 got bbbbbbb and stay for inspection, 4 never got it")
	})
	t.Run("the target is deleted, and another agent leads", func(t *testing.T) {
		l := failed(true)
		says := l.settle().status.Message
		want := l.want
		want.Rollout = nil
		l.published, l.want, l.failing, l.stale = v1alpha1.SyncTargetSpec{}, v1alpha1.SyncTargetSpec{}, nil, nil
		l.lead() // before the ref is resolved
		l.want = want
		p := l.settle()
		assert.Equal(t, v1alpha1.RolloutAborted, p.status.Phase)
		assert.Equal(t, says, p.status.Message)
		assert.Empty(t, l.having(commitB))
		assert.True(t, l.published.Rollout.Back)
		l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(commitB, l.now))
		assert.Equal(t, v1alpha1.RolloutSoaking, l.settle().status.Phase)
	})
	t.Run("the target is deleted, and the spec is fixed", func(t *testing.T) {
		l := failed(true)
		l.settle()
		l.published, l.want.Rollout, l.failing, l.stale = v1alpha1.SyncTargetSpec{}, nil, nil, nil
		l.gs.Generation++
		assert.Equal(t, v1alpha1.RolloutSoaking, l.settle().status.Phase)
	})
	t.Run("another commit", func(t *testing.T) {
		l := failed(true)
		l.want.Commit = commitC
		assert.Equal(t, v1alpha1.RolloutSoaking, l.settle().status.Phase)
		assert.Equal(t, []string{"dev-1", "dev-2"}, l.having(commitC))
		assert.Empty(t, l.having(commitB))
	})
	t.Run("back to the last good commit", func(t *testing.T) {
		l := failed(false)
		l.want.Commit = commitA
		assert.Equal(t, v1alpha1.RolloutDone, l.settle().status.Phase)
		assert.Len(t, l.having(commitA), 6)
	})
	t.Run("retry", func(t *testing.T) {
		l := failed(true)
		l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(commitC, noon))
		assert.Equal(t, v1alpha1.RolloutAborted, l.settle().status.Phase, "the annotation names another commit")
		l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(commitB, noon))
		assert.Equal(t, v1alpha1.RolloutSoaking, l.settle().status.Phase)
		assert.Equal(t, []string{"dev-1", "dev-2"}, l.having(commitB))
		l.fails("dev-1", v1alpha1.ReasonTemplateFailed)
		assert.Equal(t, v1alpha1.RolloutAborted, l.settle().status.Phase, "the retry is used up")
	})
	t.Run("a change of the stages", func(t *testing.T) {
		l := failed(false)
		l.gs.Spec.Deployment.Stages = l.gs.Spec.Deployment.Stages[:1]
		assert.Equal(t, v1alpha1.RolloutAborted, l.settle().status.Phase)
	})
}

func TestDryRunBeforeRollout(t *testing.T) {
	l := newLine()
	l.gs.Spec.Deployment, l.gs.Spec.Validation = nil, &v1alpha1.ValidationSpec{DryRunBefore: true}
	l.published.Rollout.Steps, l.published.Rollout.Open, l.want.Commit = 1, 1, commitB
	plans := func(names ...string) {
		for _, name := range names {
			l.as[name] = status.Standing{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, Planned: commitB}
		}
	}
	plans("dev-1", "dev-2", "pilot-1", "pilot-2", "line-1")
	p := l.settle()
	assert.Equal(t, v1alpha1.RolloutPlanning, p.status.Phase)
	assert.Equal(t, "5 of 6 gateways made a dry run of bbbbbbb; waits for line-2 (GateClosed)", p.status.Message)
	assert.Zero(t, l.published.Rollout.Open)
	t.Run("a failed dry run", func(t *testing.T) {
		broken := *l
		broken.as = map[string]status.Standing{}
		broken.published.Rollout, broken.gs = l.published.Rollout.DeepCopy(), l.gs.DeepCopy()
		broken.fails("line-2", v1alpha1.ReasonPatchFailed)
		p := broken.settle()
		assert.Equal(t, v1alpha1.RolloutAborted, p.status.Phase)
		assert.Equal(t, "dry run: line-2 PatchFailed: so; no gateway got bbbbbbb", p.status.Message)
	})
	plans("line-2")
	l.lead()
	clear(l.as)
	assert.Equal(t, v1alpha1.RolloutDone, l.settle().status.Phase)
	assert.Len(t, l.having(commitB), 6)
}

// Random reports, leads and clocks: no step opens before the gateways of the earlier steps run the commit and their stages allow it. Each
// rollout ends, or its status says what it waits for.
func TestRolloutModel(t *testing.T) {
	const seeds = 300
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			l := newLine()
			if seed%2 == 0 {
				l.gs.Spec.Deployment.Stages[0].PostSyncWait, l.gs.Spec.Deployment.Stages[1].RequireApproval = "0s", false
			}
			commits := 0
			for range 120 {
				names := []string{"dev-1", "dev-2", "pilot-1", "pilot-2", "line-1", "line-2"}
				name := names[random.IntN(len(names))]
				switch random.IntN(12) {
				case 0:
					commits++
					l.want.Commit = fmt.Sprintf("%040x", commits)
				case 1:
					l.fails(name, []v1alpha1.Reason{v1alpha1.ReasonTemplateFailed, v1alpha1.ReasonScanFailed, v1alpha1.ReasonGitTimeout, v1alpha1.ReasonGatewayUnreachable}[random.IntN(4)])
				case 2, 3:
					delete(l.as, name)
				case 4:
					l.pauses(name)
				case 5, 6:
					l.now = l.now.Add(time.Duration(random.IntN(90)) * time.Second)
				case 7:
					l.approve([]string{"dev", "pilot"}[random.IntN(2)])
				case 8: // another lead, which has not seen the last status
					l.failing = nil
					if random.IntN(2) == 0 {
						l.gs.Status.Rollout = nil
					}
				case 9:
					l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(l.want.Commit, l.now))
				case 10:
					l.now = l.now.Add(-time.Duration(random.IntN(60)) * time.Second)
				default:
					l.sync()
				}
				was := l.published
				want := l.want.Commit
				p := l.lead()
				require.NotNil(t, p.status)
				require.NotEmpty(t, p.status.Message)
				require.NotEmpty(t, p.status.Phase)
				if l.published.Rollout.Done && (was.Rollout.Done && was.Commit == want || l.gs.Status.RanEverywhere(want)) {
					continue
				}
				from := 0
				if was.Rollout != nil && was.Commit == want {
					from = int(was.Rollout.Open)
				}
				for step := from; step < int(l.published.Rollout.Open); step++ {
					for _, g := range l.gateways {
						if schedule.StepOf(l.gs, g.Name) <= step {
							require.True(t, l.at[g.Name] == want || leftOut(g), "step %d opened, %s is %s/%s", step+1, g.Name, g.Phase, g.Reason)
						}
					}
					require.True(t, step != 1 || seed%2 == 0 || annotation.Approved(l.gs, "pilot", want), "stage pilot opened without an approval")
				}
			}
			// The rollout ends if all goes well.
			clear(l.as)
			l.approve("dev")
			l.approve("pilot")
			for range 5 {
				l.settle()
				l.now = l.now.Add(2 * time.Minute)
			}
			phase := l.lead().status.Phase
			require.Contains(t, []v1alpha1.RolloutPhase{v1alpha1.RolloutDone, v1alpha1.RolloutAborted}, phase)
			if phase == v1alpha1.RolloutDone {
				require.Len(t, l.having(l.published.Commit), 6)
			}
		})
	}
}
