package lead

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

// If a GatewaySync has no stages, windows or snapshots, the target has no fields for them, and one commit is one write of the target.
func TestPlainTargetHasNoNewFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 3)
		resolved := metav1.NewTime(noon)
		p.held = p.Target
		p.held.Format, p.held.ResolvedAt = v1alpha1.TargetFormat, &resolved
		p.answer = func(n int) pollResult {
			commit := commitA
			if n > 0 {
				commit = commitB
			}
			return pollResult{desired: "main", name: "refs/heads/main", commit: commit}
		}
		p.lead(func() {
			time.Sleep(30 * time.Second)
			synctest.Wait()
			assert.Empty(t, p.times(&p.targets))
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Len(t, p.times(&p.targets), 1)
			statuses := len(p.times(&p.statuses))
			p.mu.Lock()
			for _, r := range p.Reports { // setup: the gateways follow
				r.Status.Commit, r.Status.Target, r.Status.Revision = commitB, commitB, p.held.Revision
			}
			p.mu.Unlock()
			signal(p.wake)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			assert.Len(t, p.times(&p.targets), 1, "no report changes the target")
			assert.Len(t, p.times(&p.statuses), statuses+1)
			gs, err := p.sync()
			require.NoError(t, err)
			assert.Equal(t, "True/Synced", condition(&gs.Status, v1alpha1.ConditionReady))
			assert.Nil(t, gs.Status.Rollout)
			is := p.target()
			is.ResolvedAt = &resolved
			raw, err := json.Marshal(is)
			require.NoError(t, err)
			assert.Equal(t, `{"format":1,"lead":{},"revision":2,"generation":1,"ref":"main","refName":"refs/heads/main","commit":"`+commitB+
				`","resolvedAt":"2026-01-02T12:00:00Z","requests":"`+annotation.Hash(gs)+`"}`, string(raw))
		})
	})
}
