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
	t.Run("it fails on", func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 1)
		p.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"*"}, PostSyncWait: "1h"}}}
		since := metav1.NewTime(time.Now().Truncate(time.Second))
		p.GatewaySync.Status.Rollout = &v1alpha1.RolloutStatus{Commit: commitA, Step: 1, Steps: 1, Stage: "dev", Phase: v1alpha1.RolloutSoaking, Since: &since, Message: "soaks"}
		p.held = p.Target
		p.held.Rollout = &v1alpha1.TargetRollout{Revision: 1, Rules: rulesOf(p.GatewaySync), Order: orderOf(p.GatewaySync), Steps: 1, Open: 1}
		p.refuseTarget = errors.New("out of order")
		p.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationForceSync: "now"}
		p.lead(func() {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			gs, err := p.sync()
			require.NoError(t, err)
			assert.NotEqual(t, "True/Synced", condition(&gs.Status, v1alpha1.ConditionReady))
			assert.Nil(t, gs.Status.LastGood)
			require.NotNil(t, gs.Status.Rollout)
			assert.Equal(t, v1alpha1.RolloutSoaking, gs.Status.Rollout.Phase)
		})
	})
}
