package lead

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/status"
)

// A stage proves nothing while none of its gateways runs the commit: neither a pod that is gone nor a gateway that a user pauses does.
func TestStageWithoutGateways(t *testing.T) {
	for name, lose := range map[string]func(l *line, name string){
		"gone":   func(l *line, name string) { delete(l.at, name) },
		"paused": func(l *line, name string) { l.pauses(name) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			l.gs.Spec.Deployment.Stages[0].PostSyncWait, l.gs.Spec.Deployment.Stages[1].RequireApproval = "0s", false
			l.want.Commit = commitB
			l.lead()
			require.EqualValues(t, 1, l.published.Rollout.Open)
			lose(l, "dev-1")
			lose(l, "dev-2")
			p := l.settle()
			assert.Equal(t, v1alpha1.RolloutProgressing, p.status.Phase)
			assert.Contains(t, p.status.Message, "no gateway of stage dev runs bbbbbbb")
			assert.Empty(t, l.having(commitB))
			l.approve("dev")
			assert.Equal(t, v1alpha1.RolloutDone, l.settle().status.Phase)
		})
	}
}

func TestRetryAfterFailedHealthCheck(t *testing.T) {
	l := newLine()
	l.want.Commit = commitB
	l.checks(false, 3)
	require.Equal(t, v1alpha1.RolloutAborted, l.settle().status.Phase)
	l.annotate(v1alpha1.AnnotationRetry, annotation.RetryValue(commitB, noon))
	p := l.settle()
	assert.Equal(t, v1alpha1.RolloutSoaking, p.status.Phase, "checks of the attempt before do not count: %s", p.status.Message)
}

// Each push and each request makes a new revision of the target. While the agents answer it, a stage soaks on.
func TestNewRevisionKeepsTheSoak(t *testing.T) {
	asked := func(l *line) {
		for _, name := range []string{"dev-1", "dev-2"} { // setup: the agents have not answered yet
			l.as[name] = status.Standing{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonProgressing, Stale: true}
		}
	}
	t.Run("soaking", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		since := l.settle().status.Since
		l.now = l.now.Add(50 * time.Second)
		asked(l)
		p := l.lead()
		assert.Equal(t, v1alpha1.RolloutSoaking, p.status.Phase)
		assert.Equal(t, since, p.status.Since)
		clear(l.as)
		l.now = l.now.Add(10 * time.Second)
		assert.Equal(t, v1alpha1.RolloutWaiting, l.settle().status.Phase)
		asked(l)
		p = l.lead()
		assert.Equal(t, v1alpha1.RolloutWaiting, p.status.Phase)
		assert.Equal(t, "pilot", p.status.Stage)
	})
	t.Run("paused", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		since := l.settle().status.Since
		l.now = l.now.Add(50 * time.Second)
		l.gs.Spec.Paused = true
		p := l.lead()
		assert.Equal(t, v1alpha1.RolloutSoaking, p.status.Phase)
		assert.Equal(t, "syncing is paused", p.status.Message)
		assert.Equal(t, since, p.status.Since, "the gateways still run the commit")
		l.now = l.now.Add(10 * time.Second)
		assert.EqualValues(t, 1, l.lead().target.Open, "a pause opens no stage")
		l.gs.Spec.Paused = false
		assert.Equal(t, v1alpha1.RolloutWaiting, l.settle().status.Phase)
		l.gs.Spec.Paused = true
		p = l.lead()
		assert.Equal(t, v1alpha1.RolloutWaiting, p.status.Phase, "what soaked need not soak again")
		assert.Equal(t, "pilot", p.status.Stage)
	})
	t.Run("an agent without an answer", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		l.settle()
		asked(l)
		assert.Equal(t, v1alpha1.RolloutSoaking, l.lead().status.Phase)
		l.now = l.now.Add(patience)
		assert.Equal(t, v1alpha1.RolloutProgressing, l.lead().status.Phase, "the soak ends if an agent does not answer in time")
	})
	t.Run("another spec", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		l.settle()
		l.now = l.now.Add(50 * time.Second)
		l.gs.Spec.Sync.Profiles["x"] = v1alpha1.SyncProfile{}
		l.gs.Generation++
		asked(l)
		assert.Equal(t, v1alpha1.RolloutProgressing, l.lead().status.Phase)
		assert.Equal(t, v1alpha1.RolloutProgressing, l.lead().status.Phase)
		clear(l.as)
		p := l.lead()
		assert.Equal(t, v1alpha1.RolloutSoaking, p.status.Phase)
		assert.Equal(t, l.now, p.status.Since.Time)
	})
}

// A stage that has soaked does not soak again because a gateway fails for a short time while the next stage waits for an approval.
func TestShortFailureKeepsTheWait(t *testing.T) {
	for name, fail := range map[string]func(l *line){
		"one fails": func(l *line) { l.fails("dev-1", v1alpha1.ReasonScanFailed) },
		"one fails, one has not answered": func(l *line) {
			l.fails("dev-1", v1alpha1.ReasonScanFailed)
			l.as["dev-2"] = status.Standing{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonProgressing, Stale: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			l.want.Commit = commitB
			l.settle()
			l.now = l.now.Add(time.Minute)
			waiting := l.settle().status
			require.Equal(t, v1alpha1.RolloutWaiting, waiting.Phase)

			l.now = l.now.Add(time.Hour)
			fail(l)
			p := l.lead()
			assert.Equal(t, v1alpha1.RolloutWaiting, p.status.Phase)
			assert.Equal(t, "pilot", p.status.Stage)
			assert.Equal(t, waiting.Since, p.status.Since)
			assert.Contains(t, p.status.Message, "stage pilot opens after its approval and when all gateways run bbbbbbb again: dev-1 (ScanFailed)")
			l.approve("pilot")
			l.now = l.now.Add(5 * time.Second)
			assert.EqualValues(t, 1, l.lead().target.Open, "no stage opens while a gateway fails")

			clear(l.as)
			assert.EqualValues(t, 2, l.lead().target.Open, "stage dev need not soak again")
		})
	}
	t.Run("it keeps failing", func(t *testing.T) {
		l := newLine()
		l.want.Commit = commitB
		l.settle()
		l.now = l.now.Add(time.Minute)
		l.settle()
		l.fails("dev-1", v1alpha1.ReasonScanFailed)
		l.lead()
		l.now = l.now.Add(patience)
		assert.Equal(t, v1alpha1.RolloutAborted, l.lead().status.Phase)
	})
}

// A new lead that cannot write the target yet does not call a fleet synced whose last stage soaks.
func TestNewLeadKeepsTheRollout(t *testing.T) {
	duringTerm(t, 1, func(p *fakeFleet) {
		p.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"*"}, PostSyncWait: "1h"}}}
		since := metav1.NewTime(time.Now().Truncate(time.Second))
		p.GatewaySync.Status.Rollout = &v1alpha1.RolloutStatus{Commit: commitA, Step: 1, Steps: 1, Stage: "dev", Phase: v1alpha1.RolloutSoaking, Since: &since, Message: "soaks"}
		p.held = p.Target
		p.held.Rollout = &v1alpha1.TargetRollout{Revision: 1, Rules: rulesOf(p.GatewaySync), Order: orderOf(p.GatewaySync), Steps: 1, Open: 1}
		p.refuseTarget = errors.New("out of order")
		p.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationForceSync: "now"}
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(5 * time.Second)
		synctest.Wait()
		gs, err := p.sync()
		require.NoError(t, err)
		assert.NotEqual(t, "True/Synced", condition(&gs.Status, v1alpha1.ConditionReady))
		assert.Nil(t, gs.Status.LastGood)
		require.NotNil(t, gs.Status.Rollout)
		assert.Equal(t, v1alpha1.RolloutSoaking, gs.Status.Rollout.Phase)
	})
}

func TestRolloutOfChange(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *line)
		having int // gateways that have the commit when the rollout waits or ends
		phase  v1alpha1.RolloutPhase
	}{
		"another commit":                 {func(l *line) { l.want.Commit = commitB }, 2, v1alpha1.RolloutSoaking},
		"another mapping":                {func(l *line) { l.gs.Spec.Sync.Profiles["x"] = v1alpha1.SyncProfile{}; l.gs.Generation++ }, 6, v1alpha1.RolloutSoaking},
		"rules of another agent version": {func(l *line) { l.published.Rollout.Rules = "of another version" }, 6, v1alpha1.RolloutDone},
		"another alert receiver":         {func(l *line) { l.gs.Spec.Alerting = &v1alpha1.AlertingSpec{} }, 6, v1alpha1.RolloutDone},
		"another interval":               {func(l *line) { l.gs.Spec.Polling.Interval, l.gs.Spec.Deployment.Stages[0].PostSyncWait = "1h", "2m" }, 6, v1alpha1.RolloutDone},
		"a commit of the history":        {func(l *line) { l.gs.Status.History[0].Commit = commitB; l.want.Commit = commitB }, 6, v1alpha1.RolloutDone},
		"a request until the ref moves":  {func(l *line) { l.want.Commit, l.rollback = commitB, true }, 2, v1alpha1.RolloutSoaking},
		"a rollback": {func(l *line) {
			l.gs.Status.History[0].Commit, l.want.Commit, l.rollback = commitB, commitB, true
			l.gs.Spec.Sync.Profiles["x"] = v1alpha1.SyncProfile{}
			l.gs.Generation++
		}, 6, v1alpha1.RolloutDone},
		"first stages":                 {func(l *line) { l.published.Rollout = nil }, 6, v1alpha1.RolloutDone},
		"first stages, another commit": {func(l *line) { l.published.Rollout = nil; l.want.Commit = commitB }, 2, v1alpha1.RolloutSoaking},
		"the target was deleted":       {func(l *line) { l.published = v1alpha1.SyncTargetSpec{}; l.want.Commit = commitB }, 2, v1alpha1.RolloutSoaking},
		"the target was deleted while other mappings roll out": {func(l *line) {
			l.gs.Spec.Sync.Profiles["x"] = v1alpha1.SyncProfile{}
			l.gs.Generation++
			l.settle()
			l.published, l.want.Rollout = v1alpha1.SyncTargetSpec{}, nil
		}, 6, v1alpha1.RolloutSoaking},
		"the target was deleted after a rollout": {func(l *line) { l.settle(); l.published, l.want.Rollout = v1alpha1.SyncTargetSpec{}, nil }, 6, v1alpha1.RolloutDone},
		"a new fleet": {func(l *line) {
			l.published, l.gs.Status.LastGood, l.want.Commit = v1alpha1.SyncTargetSpec{}, nil, commitB
			for name := range l.at {
				l.at[name] = ""
			}
		}, 6, v1alpha1.RolloutDone},
		"a fleet without status": {func(l *line) {
			l.published, l.gs.Status, l.want.Commit = v1alpha1.SyncTargetSpec{}, v1alpha1.GatewaySyncStatus{}, commitB
		}, 2, v1alpha1.RolloutSoaking},
		"all at once":                      {func(l *line) { l.gs.Spec.Deployment.Stages = nil; l.want.Commit = commitB }, 6, ""},
		"another stage after the rollout":  {func(l *line) { l.gs.Spec.Deployment.Stages = l.gs.Spec.Deployment.Stages[:1] }, 6, v1alpha1.RolloutDone},
		"paused":                           {func(l *line) { l.gs.Spec.Paused = true; l.want.Commit = commitB }, 0, v1alpha1.RolloutProgressing},
		"an empty canary holds":            {func(l *line) { delete(l.at, "dev-1"); delete(l.at, "dev-2"); l.want.Commit = commitB }, 0, v1alpha1.RolloutWaiting},
		"a paused canary holds":            {func(l *line) { l.pauses("dev-1"); l.pauses("dev-2"); l.want.Commit = commitB }, 0, v1alpha1.RolloutWaiting},
		"a paused gateway is left out":     {func(l *line) { l.pauses("dev-1"); l.want.Commit = commitB }, 1, v1alpha1.RolloutSoaking},
		"an empty canary that is approved": {func(l *line) { delete(l.at, "dev-1"); delete(l.at, "dev-2"); l.want.Commit = commitB; l.approve("dev") }, 0, v1alpha1.RolloutSoaking},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			c.change(l)
			p := l.settle()
			if c.phase == "" {
				assert.Nil(t, p.status)
				assert.Nil(t, l.published.Rollout)
			} else {
				assert.Equal(t, c.phase, p.status.Phase, "%s", p.status.Message)
				assert.NotEmpty(t, p.status.Message)
			}
			assert.Len(t, l.having(l.want.Commit), c.having)
		})
	}
}

// During an upgrade leads of two versions may follow each other, and each hashes the fields that it knows.
func TestUpgradeKeepsTheRollout(t *testing.T) {
	l := newLine()
	l.want.Commit = commitB
	was := l.settle().status
	// sequence: the leads take turns
	for range 3 {
		l.published.Rollout.Rules = "of another version"
		p := l.lead()
		assert.EqualValues(t, 1, l.published.Rollout.Open)
		assert.Equal(t, was, p.status)
		assert.EqualValues(t, 8, l.published.Revision, "the target keeps its revision")
		assert.Equal(t, rulesOf(l.gs), l.published.Rollout.Rules)
	}
	l.gs.Spec.Sync.Profiles["x"] = v1alpha1.SyncProfile{}
	l.gs.Generation++
	_, fresh := (&rollout{observed: l.observed, order: schedule.OrderOf(l.gs)}).begin()
	assert.True(t, fresh)
}

// A rollout begins again if its stages have other gateways, not if a stage has other waits.
func TestStageChangeDuringRollout(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *v1alpha1.DeploymentSpec)
		open   int32
	}{
		"other gateways": {func(d *v1alpha1.DeploymentSpec) { d.Stages[0].Gateways = []string{"line-*"} }, 0},
		"another order":  {func(d *v1alpha1.DeploymentSpec) { d.Stages[0], d.Stages[1] = d.Stages[1], d.Stages[0] }, 0},
		"another name":   {func(d *v1alpha1.DeploymentSpec) { d.Stages[1].Name = "test" }, 0},
		"a sync order":   {func(d *v1alpha1.DeploymentSpec) { d.SyncOrder = []v1alpha1.SyncOrderEntry{{Name: "dev-1"}} }, 0},
		"a shorter wait": {func(d *v1alpha1.DeploymentSpec) { d.Stages[0].PostSyncWait = "10s" }, 1},
		"no approval":    {func(d *v1alpha1.DeploymentSpec) { d.Stages[1].RequireApproval = false }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine()
			l.want.Commit = commitB
			l.settle()
			require.EqualValues(t, 1, l.published.Rollout.Open)
			revision := l.published.Rollout.Revision
			l.gs.Spec.Deployment = l.gs.Spec.Deployment.DeepCopy()
			c.change(l.gs.Spec.Deployment)
			l.gs.Generation++
			next, fresh := (&rollout{observed: l.observed, order: schedule.OrderOf(l.gs)}).begin()
			assert.Equal(t, c.open, next.Open)
			assert.Equal(t, c.open == 0, fresh)
			l.settle()
			assert.Equal(t, c.open == 0, l.published.Rollout.Revision != revision)
		})
	}
}
