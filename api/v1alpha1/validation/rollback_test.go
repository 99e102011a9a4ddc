package validation_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
)

func TestSnapshotsValidation(t *testing.T) {
	for name, tt := range map[string]struct {
		snapshots v1alpha1.SnapshotsSpec
		restore   string
		says      string
	}{
		"valid":               {v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 100, MaxSize: "512Mi"}, "area-4-20260212-102000.tar.gz", ""},
		"too many":            {v1alpha1.SnapshotsSpec{RetentionCount: 101}, "", "spec.snapshots.retentionCount"},
		"a size without unit": {v1alpha1.SnapshotsSpec{MaxSize: "1TB"}, "", "spec.snapshots.maxSize"},
		"not an id":           {v1alpha1.SnapshotsSpec{}, "../../etc", "spec.rollback.toSnapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Repo: "https://git.example.com/plant.git", Ref: "main"},
				Snapshots: &tt.snapshots, Rollback: &v1alpha1.RollbackSpec{ToSnapshot: tt.restore}}}
			gs.Name, gs.Namespace = "plant", "line"
			err := validation.GatewaySync(gs).ToAggregate()
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
		})
	}
}
