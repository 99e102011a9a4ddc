package v1alpha1_test

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	commit1 = "1111111111111111111111111111111111111111"
	commit2 = "2222222222222222222222222222222222222222"
)

// C1: any writer of pods or GatewaySyncs controls the annotations, so reading them must never fail.
func FuzzAnnotations(f *testing.F) {
	f.Add("gw-1", "blue", "main", "v2", "v2@main t1", commit1, "v2@main", "v2@main unless "+commit1, "services/a", "*.{a,b},c", "30", commit2, "v2@main t1 at "+commit2+" not at "+commit1)
	f.Add("", "", "", "", "", "", "", "", "", "", "", "", "")
	f.Add("-", "{{", "refs/heads/../x", "@", "@@", "\x00", "@", " ", "./", `\`, "-1", "main", " at ")
	f.Fuzz(func(t *testing.T, pod, name, spec, requested, over, unless, statusOver, lapsed, path, excludes, period, commit, refused string) {
		gs := smallest()
		gs.Spec.Git.Ref = spec
		gs.Status.Request = &v1alpha1.RequestStatus{Over: statusOver, Lapsed: lapsed, Refused: refused}
		gs.Annotations = map[string]string{
			v1alpha1.AnnotationRequestedRef: requested, v1alpha1.AnnotationRequestedOver: over,
			v1alpha1.AnnotationRequestedUnless: unless, v1alpha1.AnnotationRequestedAt: name, v1alpha1.AnnotationRequestedBy: pod,
			v1alpha1.AnnotationRequestedCommit: commit,
		}
		d, err := desiredref.Of(gs, lapsed)
		if err == nil {
			assert.Contains(t, []string{spec, requested}, d.Ref)
			assert.Equal(t, d.Override, d.Ref != spec)
			assert.True(t, requested == "" || strings.HasPrefix(d.Over, requested+"@"))
			if len(spec) <= 255 {
				assert.LessOrEqual(t, len(d.Over), 640)
				assert.LessOrEqual(t, len(d.Lapsed), 768)
				assert.LessOrEqual(t, len(d.Refused), 768)
			}
			assert.True(t, d.Commit == "" || syntax.IsCommit(d.Commit))
			if d.Commit != "" {
				require.Error(t, d.CheckCommit(strings.Repeat("e", 40)+"x"))
			}
			gs.Status.Request = &v1alpha1.RequestStatus{Over: d.Over, Lapsed: d.Lapsed, Refused: d.Refused}
			again, err := desiredref.Of(gs, lapsed)
			require.NoError(t, err)
			assert.Equal(t, d, again)
		}

		labels := map[string]string{"app.kubernetes.io/name": spec, "apps.kubernetes.io/pod-index": period, "statefulset.kubernetes.io/pod-name": over}
		if got, err := gatewaypod.GatewayName(pod, labels, map[string]string{v1alpha1.AnnotationGatewayName: name}); err == nil && got != pod {
			assert.LessOrEqual(t, len(got), 253)
			assert.NotContains(t, got, "/")
		}

		e, err := effective.Of(gs, "", map[string]string{
			v1alpha1.AnnotationServicePath: path, v1alpha1.AnnotationExcludePatterns: excludes, v1alpha1.AnnotationSyncPeriod: period,
			v1alpha1.AnnotationProfile: requested, v1alpha1.AnnotationTagProvider: unless, v1alpha1.AnnotationDeploymentMode: over,
			v1alpha1.AnnotationSystemName: name, v1alpha1.AnnotationSystemNameTemplate: lapsed,
		})
		if err != nil {
			var named *v1alpha1.Error
			require.ErrorAs(t, err, &named)
			return
		}
		require.Len(t, e.Mappings, 3)
		for _, m := range e.Mappings {
			assertLocal(t, m.Source)
			assertLocal(t, m.Destination)
		}
	})
}

func assertLocal(t *testing.T, p string) {
	t.Helper()
	assert.True(t, filepath.IsLocal(p), "%q", p)
	root := "/data"
	joined := path.Join(root, p)
	assert.True(t, joined == root || strings.HasPrefix(joined, root+"/"), "%q", p)
}
