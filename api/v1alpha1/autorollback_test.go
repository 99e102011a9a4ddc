package v1alpha1

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAutoRollbackSettings(t *testing.T) {
	snapshots := &SnapshotsSpec{Enabled: true}
	all := []AutoRollbackTrigger{TriggerScanFailure, TriggerProjectLoadError, TriggerConfigError}
	for name, tt := range map[string]struct {
		spec      *AutoRollbackSpec
		snapshots *SnapshotsSpec
		dryRun    bool
		scope     AutoRollbackScope
		agent     []AutoRollbackTrigger // what the agent acts on
		refused   string
	}{
		"none":              {snapshots: snapshots},
		"not enabled":       {spec: &AutoRollbackSpec{Scope: AutoRollbackGateway}},
		"the defaults":      {spec: &AutoRollbackSpec{Enabled: true}, snapshots: snapshots, scope: AutoRollbackGateway, agent: all},
		"one trigger":       {spec: &AutoRollbackSpec{Enabled: true, Triggers: all[1:2]}, snapshots: snapshots, scope: AutoRollbackGateway, agent: all[1:2]},
		"the lead decides":  {spec: &AutoRollbackSpec{Enabled: true, Scope: AutoRollbackRollout}, dryRun: true, scope: AutoRollbackRollout},
		"no rollout":        {spec: &AutoRollbackSpec{Enabled: true, Scope: AutoRollbackRollout}, refused: "spec.autoRollback.scope"},
		"rollout triggers":  {spec: &AutoRollbackSpec{Scope: AutoRollbackRollout, Triggers: all}, refused: "spec.autoRollback.triggers"},
		"without snapshots": {spec: &AutoRollbackSpec{Enabled: true}, snapshots: &SnapshotsSpec{}, scope: AutoRollbackGateway, refused: "spec.autoRollback.enabled"},
		"an odd trigger":    {spec: &AutoRollbackSpec{Triggers: []AutoRollbackTrigger{"logLine"}}, refused: "spec.autoRollback.triggers[0]"},
		"a trigger twice":   {spec: &AutoRollbackSpec{Triggers: []AutoRollbackTrigger{all[0], all[0]}}, refused: "spec.autoRollback.triggers[1]"},
		"an odd scope":      {spec: &AutoRollbackSpec{Scope: "fleet"}, refused: "spec.autoRollback.scope"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &GatewaySync{Spec: GatewaySyncSpec{Git: GitSpec{Repo: "https://git.example.com/plant.git", Ref: "main"}, AutoRollback: tt.spec, Snapshots: tt.snapshots}}
			gs.Spec.Validation = &ValidationSpec{DryRunBefore: tt.dryRun}
			gs.Name, gs.Namespace = "plant", "line"
			errs := Validate(gs)
			if tt.refused != "" {
				assert.Len(t, errs, 1)
				assert.Equal(t, tt.refused, errs[0].Field)
				return
			}
			assert.Empty(t, errs)
			assert.Equal(t, tt.scope, gs.AutoRollbackScope())
			assert.Equal(t, tt.agent, gs.autoRollback())
		})
	}
}

func TestRetryRequest(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	value := RetryValue(commit, time.Date(2026, 2, 13, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, commit+" 2026-02-13T00:00:00Z", value)
	for name, tt := range map[string]struct {
		value string
		valid bool
	}{
		"none":                  {"", false},
		"a commit and a time":   {value, true},
		"no time":               {commit, false},
		"part of a commit":      {commit[:7] + " 2026-02-13T00:00:00Z", false},
		"no commit":             {strings.Repeat("x", 40) + " 2026-02-13T00:00:00Z", false},
		"control characters":    {value + "\x1b[2J", false},
		"too long":              {commit + " 2026-02-13T00:00:00." + strings.Repeat("1", 40) + "Z", false},
		"more than one request": {value + " " + value, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &GatewaySync{}
			gs.Annotations = map[string]string{AnnotationRetry: tt.value}
			assert.Equal(t, tt.valid, gs.Retry() != "")
		})
	}
	assert.True(t, Retries(value, commit))
	assert.False(t, Retries(value, strings.Repeat("0", 40)))
	assert.False(t, Retries("", ""))
}
