package fleet

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestAFleetGoesOnWhenItsLeadIsKilledAndWhenItStops(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 3)
	for _, g := range p.gw {
		g.start()
	}
	p.converges("first", p.first)
	advertisements := p.git.Stats().Advertisements
	uploads := p.git.Stats().UploadPacks
	t.Logf("first sync of 3 gateways: %d advertisements, %d fetches", advertisements, uploads)

	lead := p.lead()
	require.NotNil(t, lead)
	lead.end(syscall.SIGKILL)
	second := p.commit("second")
	p.eventually("another one leads", func() bool { l := p.lead(); return l != nil && l != lead })
	lead.start()
	p.converges("second", second)

	old := p.lead()
	began := time.Now()
	require.NoError(t, old.cmd.Process.Signal(syscall.SIGTERM))
	p.eventually("another one leads", func() bool { l := p.lead(); return l != nil && l != old })
	took := time.Since(began)
	t.Logf("handed over in %s", took)
	assert.Less(t, took, 20*time.Second, "ten times what it may take")
	<-old.done
	assert.Zero(t, old.cmd.ProcessState.ExitCode())
	third := p.commit("third")
	old.start()
	p.converges("third", third)
}

// C4: a lead whose process is stopped for longer than its lock lasts wakes up when another one leads, and overwrites
// nothing: neither the target nor the status.
func TestALeadThatWasStoppedForAWhileOverwritesNothing(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	for _, g := range p.gw {
		g.start()
	}
	p.converges("first", p.first)
	old := p.lead()
	require.NotNil(t, old)
	require.NoError(t, old.cmd.Process.Signal(syscall.SIGSTOP))
	second := p.commit("second")
	p.eventually("another one leads", func() bool { l := p.lead(); return l != nil && l != old })
	next := p.lead()
	p.eventually("the one that runs has the commit", func() bool { return next.title() == "second" })
	target := p.target()
	assert.Equal(t, second, target.Commit)
	// What is watched begins with what is there: the last word of the one that was stopped has to be replaced first.
	p.eventually("the status is the other one's", func() bool { st := p.status(); return st.Target != nil && st.Target.Commit == second })

	seen := p.watch()
	require.NoError(t, old.cmd.Process.Signal(syscall.SIGCONT))
	p.converges("second", second)
	time.Sleep(8 * time.Second) // more than one renewal
	require.NotEmpty(t, seen())
	for _, st := range seen() {
		assert.Equal(t, second, st.Target.Commit, "no status of the one that was stopped")
		assert.Len(t, st.DiscoveredGateways, 2)
	}
	assert.Equal(t, next, p.lead())
	assert.Equal(t, target.Lead.Transitions, p.target().Lead.Transitions)
	assert.Equal(t, second, p.target().Commit)
}

// An API server that goes away and comes back costs nothing but time, and the gateways stay as they are.
func TestAFleetOutlivesItsAPIServer(t *testing.T) {
	t.Parallel()
	p := newPlantIn(t, kubetest.Control(t, kubetest.Private()), 2)
	for _, g := range p.gw {
		g.start()
	}
	p.converges("first", p.first)
	p.cluster.Kill(t, kubetest.APIServer)
	second := p.commit("second")
	time.Sleep(18 * time.Second) // the lock is over
	for _, g := range p.gw {
		assert.Equal(t, "first", g.title())
	}
	p.cluster.Start(t, kubetest.APIServer)
	p.converges("second", second)
}
