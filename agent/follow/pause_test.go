package follow

import (
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// A sync can take an hour until it changes files. What an operator does meanwhile counts.
func TestPauseDuringSync(t *testing.T) {
	reports := func(reason v1alpha1.Reason) func(v1alpha1.SyncReportStatus) bool {
		return func(s v1alpha1.SyncReportStatus) bool {
			return s.Reason == reason && s.Phase != v1alpha1.GatewaySyncing
		}
	}
	for name, c := range map[string]struct {
		do, undo func(w *world)
		reason   v1alpha1.Reason
	}{
		"paused": {
			func(w *world) { w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = true }) },
			func(w *world) { w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = false }) },
			v1alpha1.ReasonPaused,
		},
		"profile paused": {
			func(w *world) {
				w.lead(generation(w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, true) }).Generation))
			},
			func(w *world) {
				w.lead(generation(w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, false) }).Generation))
			},
			v1alpha1.ReasonPaused,
		},
		"target deleted": {
			func(w *world) {
				require.NoError(w.t, kube.SyncTargets(w.clients.Dynamic, w.ns).Delete(w.t.Context(), crName, metav1.DeleteOptions{}))
			},
			func(*world) {},
			v1alpha1.ReasonWaitingForLead,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.gatewaySync(p)
			w.lead(targetCommit(first))
			var hold atomic.Bool
			staging, release := make(chan struct{}), make(chan struct{})
			goOn := gosync.OnceFunc(func() { close(release) })
			a := p.start(func(c *Config) {
				c.Engine.Progress = func(step string, _, _ int) {
					if step == "stage" && hold.CompareAndSwap(true, false) {
						close(staging)
						<-release
					}
				}
			})
			t.Cleanup(goOn)
			p.awaitSynced(first, "one")

			hold.Store(true)
			second := w.commit("two")
			w.lead(targetCommit(second))
			select {
			case <-staging:
			case <-time.After(liveness):
				t.Fatal("the sync does not begin")
			}
			before, _ := a.follower.targets.get()
			c.do(w)
			eventually(t, "the agent has seen the change", func() bool {
				now, err := a.follower.targets.get()
				return err != nil || now.Spec.Revision != before.Spec.Revision
			})
			goOn()
			s := p.await(string(c.reason), reports(c.reason))
			assert.Equal(t, first, s.Commit)
			assert.Equal(t, "one", p.title(), "the sync must not change a file")
			c.undo(w)
			w.lead(targetCommit(second))
			p.awaitSynced(second, "two")
		})
	}
}

// Commits may come faster than a sync ends, so a running sync ends before the next commit.
func TestCommitDuringSync(t *testing.T) {
	w := onSharedCluster(t)
	p, _ := w.syncedPod("one")
	order := p.agent.follower.State().Of
	require.NotNil(t, order)
	w.lead(targetCommit(w.commit("two")))
	p.await("another target", func(s v1alpha1.SyncReportStatus) bool { return s.Revision > order.Revision })
	assert.NoError(t, order.Stop(t.Context()))
}
