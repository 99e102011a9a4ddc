package fleet

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
