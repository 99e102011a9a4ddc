package fleet

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
)

// notLeading is what an agent logs when its term has ended. After that it no longer writes as lead.
const notLeading = `"msg":"not leading any more"`

func TestLeadFailover(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 3)
	p.Start()
	p.Converges("first", p.First)
	advertisements := p.Git.Stats().Advertisements
	uploads := p.Git.Stats().UploadPacks
	t.Logf("first sync of 3 gateways: %d advertisements, %d fetches", advertisements, uploads)

	lead := p.Lead()
	require.NotNil(t, lead)
	require.Error(t, lead.Agent.End(t, syscall.SIGKILL))
	second := p.Push("second")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != lead })
	lead.Start()
	p.Converges("second", second)

	old := p.Lead()
	held := p.Target().Lead.Holder
	began := time.Now()
	old.Agent.Signal(t, syscall.SIGTERM)
	require.NoError(t, old.Agent.Wait(t))
	assert.NotEqual(t, held, p.Target().Lead.Holder, "the agent must release the lock before it ends")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != old })
	t.Logf("handed over in %s", time.Since(began))
	third := p.Push("third")
	old.Start()
	p.Converges("third", third)
}

// C4: A lead's process is stopped for longer than its lock is valid. When it resumes, another agent leads,
// and the old lead overwrites neither the target nor the status.
func TestSuspendedLeadOverwritesNothing(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2)
	p.Start()
	p.Converges("first", p.First)
	old := p.Lead()
	require.NotNil(t, old)
	old.Agent.Signal(t, syscall.SIGSTOP)
	second := p.Push("second")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != old })
	next := p.Lead()
	p.Eventually("the running gateway has the commit", func() bool { return next.Title() == "second" })
	target := p.Target()
	assert.Equal(t, second, target.Commit)
	// A watch starts with the current objects, so the new lead must have replaced the last status of the
	// old one first.
	p.Eventually("the status names the second commit", func() bool { st := p.Status(); return st.Target != nil && st.Target.Commit == second })

	seen := p.Watch()
	old.Agent.Signal(t, syscall.SIGCONT)
	p.Converges("second", second)
	p.Eventually("the suspended agent stops leading", func() bool { return strings.Contains(old.Agent.Log.String(), notLeading) })
	require.NotEmpty(t, seen())
	for _, gs := range seen() {
		assert.Equal(t, second, gs.Status.Target.Commit, "the suspended lead must not write a status")
		assert.Len(t, gs.Status.DiscoveredGateways, 2)
	}
	assert.Equal(t, next, p.Lead())
	assert.Equal(t, target.Lead.Transitions, p.Target().Lead.Transitions)
	assert.Equal(t, second, p.Target().Commit)
}

// An outage of the API server only delays the fleet. The gateways keep running.
func TestFleetSurvivesAPIServerOutage(t *testing.T) {
	t.Parallel()
	p := plant.NewIn(t, kubetest.Control(t, kubetest.Private()), 2)
	p.Start()
	p.Converges("first", p.First)
	lead := p.Lead()
	require.NotNil(t, lead)
	p.Cluster.Kill(t, kubetest.APIServer)
	second := p.Push("second")
	p.Eventually("no agent leads", func() bool { return strings.Contains(lead.Agent.Log.String(), notLeading) })
	for _, g := range p.Gateways() {
		assert.Equal(t, "first", g.Title())
	}
	p.Cluster.Start(t, kubetest.APIServer)
	p.Converges("second", second)
}
