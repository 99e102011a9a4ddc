package lead

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gitserver"
)

// The API server may carry out a write of the target whose answer is lost. The lead continues from what is published.
func TestLostTargetAnswer(t *testing.T) {
	// line returns a fleet whose three gateways ran commitA. It rolls out commitB in two stages, from gw-0 on.
	line := func(t *testing.T) *paper {
		p := newPaper(t, 3)
		gs := p.GatewaySync
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"gw-0"}}, {Name: "prod", Gateways: []string{"*"}}}}
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
		gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA, At: metav1.NewTime(noon)}
		p.held = p.Target
		resolved := metav1.NewTime(noon)
		p.held.Format, p.held.ResolvedAt = v1alpha1.TargetFormat, &resolved
		p.held.Rollout = &v1alpha1.TargetRollout{Revision: 1, Rules: rulesOf(gs), Order: orderOf(gs), Steps: 2, Open: 2, Done: true}
		p.answer = func(int) pollResult { return pollResult{desired: "main", name: "refs/heads/main", commit: commitB} }
		return p
	}
	wait := func() {
		time.Sleep(5 * time.Second)
		synctest.Wait()
	}
	says := func(p *paper, phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason) {
		r := &p.Reports[0].Status
		r.Phase, r.Reason, r.Commit, r.Target, r.Revision = phase, reason, commitB, commitB, p.held.Revision
	}
	t.Run("when the rollout begins", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := line(t)
			p.loseAnswer = func() {}
			p.lead(func() {
				wait()
				is := p.target()
				assert.EqualValues(t, 2, is.Revision, "the rollout begins once")
				assert.EqualValues(t, 2, is.Rollout.Revision)
				assert.EqualValues(t, 1, is.Rollout.Open)
				gs, err := p.sync()
				require.NoError(t, err)
				assert.Equal(t, v1alpha1.RolloutProgressing, gs.Status.Rollout.Phase)
			})
		})
	})
	t.Run("when the rollout aborts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := line(t)
			p.lead(func() {
				wait()
				p.mu.Lock()
				revision := p.held.Revision
				says(p, v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed)
				p.loseAnswer = func() { // the gateway reports once more about the revision before
					says(p, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced)
					p.Reports[0].Status.Revision = revision
				}
				p.mu.Unlock()
				signal(p.wake)
				wait()
				is := p.target()
				assert.Contains(t, is.Rollout.Failed, "stage dev: gw-0")
				assert.True(t, is.Rollout.Back)
				assert.EqualValues(t, 1, is.Rollout.Open)
				assert.Equal(t, revision+1, is.Revision)
			})
		})
	})
	t.Run("when a step opens", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := line(t)
			p.lead(func() {
				wait()
				p.mu.Lock()
				says(p, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced)
				p.loseAnswer = func() {}
				p.mu.Unlock()
				signal(p.wake)
				wait()
				is := p.target()
				assert.EqualValues(t, 2, is.Rollout.Open)
				assert.EqualValues(t, 2, is.Revision)
				assert.False(t, is.Rollout.Done)
			})
		})
	})
}

// The same on a real API server: each write of the target of a rollout is carried out, and its first answer is lost.
func TestLostAPIServerAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"gw-0"}}}}
	})
	c := s.candidate("gw-0")
	s.untilTarget(s.first)
	s.takes("gw-0")
	s.untilReady("True/Synced")
	before := s.target().Revision
	c.wire.mu.Lock()
	c.wire.mute = map[string]int{"PUT synctargets": 1}
	c.wire.mu.Unlock()
	s.annotate("stoker.io/force-sync", "now")
	require.Eventually(t, func() bool { return s.target().Requests == annotation.Hash(s.sync()) }, tenfold, 20*time.Millisecond)
	c.wire.mu.Lock()
	c.wire.mute = map[string]int{"PUT synctargets": 1}
	c.wire.mu.Unlock()
	second := s.Commit("second", gitserver.Write("projects/a/project.json", "{ }"))
	s.untilTarget(second)
	s.takes("gw-0")
	require.Eventually(t, func() bool { return s.target().Rollout.Done }, tenfold, 20*time.Millisecond)
	target := s.target()
	assert.Equal(t, before+2, target.Revision, "a request and a commit")
	assert.Equal(t, target.Revision, target.Rollout.Revision)
}

// The commit of an artifact is known when its layer has arrived, which takes longer than an answer of git.
func TestPollLimit(t *testing.T) {
	for address, c := range map[string]struct {
		limit time.Duration
		says  string
	}{
		"https://git.example.com/plants/line.git": {5 * time.Minute, "git did not answer within 5m0s"},
		"oci://registry.example.com/plants/line":  {30 * time.Minute, "the layer did not arrive within 30m0s"},
		"oci+http://127.0.0.1:5000/plants/line":   {30 * time.Minute, "the layer did not arrive within 30m0s"},
	} {
		t.Run(address, func(t *testing.T) {
			limit, late := pollLimit(address)
			assert.Equal(t, c.limit, limit)
			assert.ErrorContains(t, late, c.says)
		})
	}
}

// A download of a layer does not keep the fleet from another ref that is desired meanwhile. A poll of git goes on, because it is short.
func TestPollIsAbandoned(t *testing.T) {
	for repository, within := range map[string]time.Duration{"oci://registry.example.com/plants/line": 10 * time.Second, "https://git.example.com/line.git": maxDownload} {
		t.Run(repository, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaper(t, 1)
				p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Repo, gs.Spec.Git.Ref = repository, "slow" })
				began := time.Now()
				var asked []time.Duration
				p.leadWith(func(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
					asked = append(asked, time.Since(began))
					f := pollResult{question: q, desired: gs.Spec.Git.Ref, commit: strings.Repeat("1", 40)}
					if gs.Spec.Git.Ref == "slow" {
						select {
						case <-ctx.Done():
							f.err = ctx.Err()
						case <-time.After(20 * time.Minute):
						}
					}
					return f
				}, func() {
					time.Sleep(time.Minute)
					p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = "quick", gs.Generation+1 })
					time.Sleep(maxDownload)
				})
				require.GreaterOrEqual(t, len(asked), 2)
				assert.Less(t, asked[1]-time.Minute, within)
				assert.Equal(t, within < time.Minute, asked[1] < 10*time.Minute)
			})
		})
	}
}
