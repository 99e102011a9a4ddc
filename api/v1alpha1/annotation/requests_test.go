package annotation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func TestRequestsFor(t *testing.T) {
	a, snapshot := strings.Repeat("a", 40), "area-4-20260212-102000"
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{{Name: "nights"}}}
	gs.Annotations = map[string]string{
		v1alpha1.AnnotationForceSync: "now" + strings.Repeat("w", 300), v1alpha1.AnnotationConfirmDeletion: a[:7], v1alpha1.AnnotationPropose: "area-4 now",
		v1alpha1.AnnotationRestore: snapshot + " 2026-01-02T12:00:00Z", v1alpha1.AnnotationRetry: a + " 2026-01-02T12:00:00Z", v1alpha1.AnnotationApproved: "window@" + a,
	}
	all := Requests{Force: "now" + strings.Repeat("w", 253), ConfirmDeletion: a[:7], Propose: "area-4 now", Restore: snapshot + " 2026-01-02T12:00:00Z",
		Retry: a + " 2026-01-02T12:00:00Z", WindowApproved: true}
	assert.Equal(t, all, RequestsFor(gs, "area-4", a))
	other := all
	other.Propose, other.Restore, other.WindowApproved = "", "", false
	assert.Equal(t, other, RequestsFor(gs, "area-5", strings.Repeat("b", 40)))
	assert.Zero(t, RequestsFor(&v1alpha1.GatewaySync{}, "area-4", a))
}

// Each request that is not about the ref or a pause is in the hash, and no value can stand for another.
func TestHash(t *testing.T) {
	hash := func(annotations map[string]string) string {
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = annotations
		return Hash(gs)
	}
	none := hash(nil)
	require.Regexp(t, `^[0-9a-f]{64}$`, none)
	seen := map[string]string{none: "no request"}
	for _, a := range v1alpha1.RequestAnnotations() {
		t.Run(a.Name, func(t *testing.T) {
			is := hash(map[string]string{a.Name: "x"})
			if strings.HasPrefix(a.Name, "stoker.io/requested-") || a.Name == v1alpha1.AnnotationPaused {
				assert.Equal(t, none, is, "the SyncTarget itself says what follows from it")
				return
			}
			assert.Empty(t, seen[is])
			seen[is] = a.Name
			few := a.Name == v1alpha1.AnnotationPropose || a.Name == v1alpha1.AnnotationApproved
			assert.Equal(t, few, SameSync(none, is))
		})
	}
	assert.NotEqual(t, hash(map[string]string{v1alpha1.AnnotationForceSync: "1", v1alpha1.AnnotationConfirmDeletion: "2"}), hash(map[string]string{v1alpha1.AnnotationForceSync: "10 2"}))
	assert.False(t, SameSync("", ""), "nothing is known")
	assert.False(t, SameSync(none, none[:32]))
}
