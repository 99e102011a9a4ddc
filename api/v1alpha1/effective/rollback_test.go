package effective

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
)

func TestAutoRollbackSettings(t *testing.T) {
	snapshots := &v1alpha1.SnapshotsSpec{Enabled: true}
	all := []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerScanFailure, v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError}
	for name, tt := range map[string]struct {
		spec      *v1alpha1.AutoRollbackSpec
		snapshots *v1alpha1.SnapshotsSpec
		dryRun    bool
		scope     v1alpha1.AutoRollbackScope
		agent     []v1alpha1.AutoRollbackTrigger // what the agent acts on
		refused   string
	}{
		"none":              {snapshots: snapshots},
		"not enabled":       {spec: &v1alpha1.AutoRollbackSpec{Scope: v1alpha1.AutoRollbackGateway}},
		"the defaults":      {spec: &v1alpha1.AutoRollbackSpec{Enabled: true}, snapshots: snapshots, scope: v1alpha1.AutoRollbackGateway, agent: all},
		"one trigger":       {spec: &v1alpha1.AutoRollbackSpec{Enabled: true, Triggers: all[1:2]}, snapshots: snapshots, scope: v1alpha1.AutoRollbackGateway, agent: all[1:2]},
		"the lead decides":  {spec: &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}, dryRun: true, scope: v1alpha1.AutoRollbackRollout},
		"no rollout":        {spec: &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}, refused: "spec.autoRollback.scope"},
		"rollout triggers":  {spec: &v1alpha1.AutoRollbackSpec{Scope: v1alpha1.AutoRollbackRollout, Triggers: all}, refused: "spec.autoRollback.triggers"},
		"without snapshots": {spec: &v1alpha1.AutoRollbackSpec{Enabled: true}, snapshots: &v1alpha1.SnapshotsSpec{}, scope: v1alpha1.AutoRollbackGateway, refused: "spec.autoRollback.enabled"},
		"unknown trigger":   {spec: &v1alpha1.AutoRollbackSpec{Triggers: []v1alpha1.AutoRollbackTrigger{"logLine"}}, refused: "spec.autoRollback.triggers[0]"},
		"duplicate trigger": {spec: &v1alpha1.AutoRollbackSpec{Triggers: []v1alpha1.AutoRollbackTrigger{all[0], all[0]}}, refused: "spec.autoRollback.triggers[1]"},
		"unknown scope":     {spec: &v1alpha1.AutoRollbackSpec{Scope: "fleet"}, refused: "spec.autoRollback.scope"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Repo: "https://git.example.com/plant.git", Ref: "main"}, AutoRollback: tt.spec, Snapshots: tt.snapshots}}
			gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: tt.dryRun}
			gs.Name, gs.Namespace = "plant", "line"
			errs := validation.GatewaySync(gs)
			if tt.refused != "" {
				assert.Len(t, errs, 1)
				assert.Equal(t, tt.refused, errs[0].Field)
				return
			}
			assert.Empty(t, errs)
			assert.Equal(t, tt.scope, gs.AutoRollbackScope())
			assert.Equal(t, tt.agent, autoRollback(gs))
		})
	}
}

func TestSnapshotSettings(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	assert.Nil(t, snapshots(gs))
	gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{RetentionCount: 3}
	assert.Nil(t, snapshots(gs), "not enabled")
	gs.Spec.Snapshots.Enabled = true
	assert.Equal(t, &v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 3, MaxSize: "1Gi", GatewayBackup: v1alpha1.GatewayBackupNever}, snapshots(gs))
}
