package lead

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

func TestRolloutOfChange(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *line)
		having int
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
