package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A commit waits until the Designer session that it affects is closed. A commit to another project does
// not wait.
func TestCommitWaitsForDesigner(t *testing.T) {
	p := newPlant(t)
	p.spec.defaults = "      designerSessionPolicy: wait\n"
	first := p.repo.Commit("first", site()...)
	p.start()
	p.synced(first)

	id, err := p.gw.Designers.Open("maria", "line")
	require.NoError(t, err)
	elsewhere := p.repo.Commit("elsewhere", gitserver.Write(inGit+"projects/other/project.json", `{"title":"","description":"","parent":"","enabled":true,"inheritable":false}`))
	p.synced(elsewhere)
	before := p.read(viewPath)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	s := p.reason("DesignerSessionActive")
	assert.Equal(t, "Held", s.Phase)
	assert.Equal(t, elsewhere, s.Commit)
	assert.Contains(t, s.Message, "maria on project line")
	assert.Equal(t, before, p.read(viewPath))

	// A save before closing is an ordinary conflict, and the saved content is kept.
	const open = "com.inductiveautomation.perspective/views/overview"
	require.NoError(t, p.gw.Designers.OpenResource(id, open))
	require.NoError(t, p.gw.Designers.SaveResource(t.Context(), id, open, map[string][]byte{"view.json": []byte(view("maria's"))}, false))
	require.NoError(t, p.gw.Designers.Close(id))
	s = p.synced(second)
	assert.Positive(t, s.Report.Files.Saved)
}

// Each node of a redundant pair has its own agent. The backup is on standby while the pair copies files.
// After a failover it takes over, even with a commit that the old master never had.
func TestPairFailover(t *testing.T) {
	role := func(r string) setup { return func(_ *plant, o *simulator.Options) { o.Role = r } }
	master := newPlant(t, role("Master"))
	backup := newPlant(t, role("Backup"))
	backup.repo, backup.git, backup.spec.repo = master.repo, master.git, master.spec.repo
	pair, err := simulator.NewPair(master.gw, backup.gw)
	require.NoError(t, err)
	backup.secret("gateway/apiKey", backup.gw.Token())

	first := master.repo.Commit("first", site()...)
	backup.start()
	backup.reason("Progressing")
	master.start()
	master.synced(first)
	backup.standby(first)

	pair.Failover(false)
	second := master.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	backup.synced(second)
	s := master.reason("NoConfigAccess")
	assert.Equal(t, first, s.Commit)

	// The old master returns and copies from the node that is active now.
	master.gw.Redundancy.SetConfigAccess(false, true)
	backup.gw.Redundancy.SetConfigAccess(true, true)
	require.NoError(t, pair.Replicate())
	master.standby(second)
	assert.Equal(t, view("second"), master.read(viewPath))
}

// standby waits until the agent reports Standby at commit, and then checks all invariants.
func (p *plant) standby(commit string) {
	p.t.Helper()
	p.await("Standby at "+commit, func(s state) bool { return s.Phase == "Standby" && s.Commit == commit })
	p.check(commit)
}

// The gateway's certificate is renewed while the agent runs. The agent uses the new CA in the secret's
// file without a restart.
func TestCertificateRenewalWithoutRestart(t *testing.T) {
	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.TLS = &simulator.TLSOptions{Names: []string{"gw.example"}} })
	p.secret("gateway/ca", string(p.gw.CA()))
	p.spec.gateway = "    tls: true\n    tlsConfig: {caSecretRef: {name: gateway, key: ca}, serverName: gw.example}\n"
	first := p.repo.Commit("first", site()...)
	p.start("--gateway-url", p.gw.TLSURL())
	p.synced(first)

	require.NoError(t, p.gw.RotateTLS(nil, time.Time{}))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	s := p.reason("GatewayUntrusted")
	assert.Contains(t, s.Message, "caSecretRef")
	assert.Equal(t, first, s.Commit)
	p.secret("gateway/ca", string(p.gw.CA()))
	p.synced(second)
}
