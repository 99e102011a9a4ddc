//go:build !race

package argocd

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// configHealth is what Argo CD makes of a ConfigSync with these conditions.
func configHealth(t *testing.T, observed, generation int, conditions ...map[string]any) (health, message string) {
	t.Helper()
	list := []any{}
	for _, c := range conditions {
		list = append(list, c)
	}
	said, err := load(t, "../ConfigSync/health.lua").run(map[string]any{
		"metadata": map[string]any{"generation": float64(generation)}, "status": map[string]any{"observedGeneration": float64(observed), "conditions": list},
	}, noon)
	require.NoError(t, err)
	var got struct{ Status, Message string }
	require.NoError(t, json.Unmarshal(said, &got))
	return got.Status, got.Message
}

func isCondition(kind, is string, reason v1alpha1.Reason) map[string]any {
	return map[string]any{"type": kind, "status": is, "reason": string(reason), "message": "text"}
}

func TestConfigSyncHealth(t *testing.T) {
	synced := isCondition("Ready", "True", v1alpha1.ReasonSynced)
	for name, c := range map[string]struct {
		observed   int
		conditions []map[string]any
		health     string
	}{
		"no run":               {0, nil, "Progressing"},
		"synced":               {2, []map[string]any{synced}, "Healthy"},
		"another spec":         {1, []map[string]any{synced}, "Progressing"},
		"another spec stalled": {1, []map[string]any{isCondition("Ready", "False", v1alpha1.ReasonManifestInvalid), isCondition("Stalled", "True", "")}, "Progressing"},
		"paused and ready":     {2, []map[string]any{isCondition("Ready", "True", v1alpha1.ReasonPaused)}, "Healthy"},
		"dry run":              {2, []map[string]any{isCondition("Ready", "False", v1alpha1.ReasonDryRun)}, "Healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			health, _ := configHealth(t, c.observed, 2, c.conditions...)
			assert.Equal(t, c.health, health)
		})
	}
}

// The health follows from the class of the reason. Reasons that only GatewaySyncs have are not asked for.
func TestConfigSyncHealthByReason(t *testing.T) {
	own := []v1alpha1.Reason{v1alpha1.ReasonNotOwned, v1alpha1.ReasonApplyConflict, v1alpha1.ReasonMassDeletion}
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassHeld && !slices.Contains(own, r.Reason) {
			continue
		}
		t.Run(string(r.Reason), func(t *testing.T) {
			conditions := []map[string]any{isCondition("Ready", "False", r.Reason)}
			want := map[v1alpha1.Class]string{v1alpha1.ClassHeld: "Suspended", v1alpha1.ClassStalled: "Degraded"}[r.Class]
			if want != "" {
				conditions = append(conditions, isCondition("Stalled", "True", r.Reason))
			}
			switch {
			case r.Reason == v1alpha1.ReasonPaused:
				want = "Suspended"
			case r.Reason == v1alpha1.ReasonDryRun:
				want = "Healthy"
			case want == "":
				want = "Progressing"
			}
			health, message := configHealth(t, 1, 1, conditions...)
			assert.Equal(t, want, health)
			assert.Contains(t, message, "text")
		})
	}
}
