package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestHistoryOfARow(t *testing.T) {
	for gateways, want := range map[int]int{1: 10, 32: 10, 33: 3, 100: 3, 101: 0} {
		t.Run(fmt.Sprint(gateways, " gateways"), func(t *testing.T) {
			s := newScene(t, gateways)
			for i := range gateways {
				for n := range 11 {
					s.report(i).SyncHistory = append(s.report(i).SyncHistory, v1alpha1.SyncRecord{Timestamp: metav1.NewTime(s.Now.Add(-time.Duration(n) * time.Hour)),
						Commit: commitA, Ref: "main", Result: v1alpha1.ReasonSynced, FilesChanged: int32(n)})
				}
			}
			rows := s.write().DiscoveredGateways
			require.Len(t, rows[0].SyncHistory, want)
			if want > 0 {
				assert.Zero(t, rows[0].SyncHistory[0].FilesChanged, "newest first")
			}
		})
	}
	t.Run("values that the API server rejects", func(t *testing.T) {
		s := newScene(t, 1)
		good := v1alpha1.SyncRecord{Timestamp: metav1.NewTime(s.Now), Commit: commitA, Result: v1alpha1.ReasonSynced}
		for _, spoil := range []func(*v1alpha1.SyncRecord){ // setup: one record for each field
			func(r *v1alpha1.SyncRecord) { r.Timestamp = metav1.Time{} }, func(r *v1alpha1.SyncRecord) { r.Commit = "a" },
			func(r *v1alpha1.SyncRecord) { r.Ref = strings.Repeat("r", 256) }, func(r *v1alpha1.SyncRecord) { r.SnapshotID = "../x" },
			func(r *v1alpha1.SyncRecord) { r.Duration = strings.Repeat("1", 33) }, func(r *v1alpha1.SyncRecord) { r.Result = v1alpha1.Reason(strings.Repeat("x", 65)) },
		} {
			bad := good
			spoil(&bad)
			s.report(0).SyncHistory = append(s.report(0).SyncHistory, bad)
		}
		s.report(0).SyncHistory = append(s.report(0).SyncHistory, good)
		list := s.write().DiscoveredGateways[0].SyncHistory
		require.Len(t, list, 1)
		assert.Equal(t, commitA, list[0].Commit)
	})
}
