package scenario

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A standalone agent makes its API key, too. A gateway that ran already needs a start by its user, and the status says so.
func TestOwnKey(t *testing.T) {
	p := newPlant(t)
	p.spec.api = "{managed: true}"
	commit := p.repo.Commit("first", site()...)
	p.start()
	s := p.reason("GatewayForbidden")
	assert.Contains(t, s.Message, "restart the gateway")
	require.NoError(t, p.gw.Restart(0))
	p.stop()
	p.start()
	p.synced(commit)
	for _, r := range p.gw.Requests.List() {
		assert.NotEqual(t, "stoker", r.Token, "only the key of the agent is used")
	}
	require.NoError(t, p.gw.Canaries.Check())
}

// Git may own the permissions. The agent leaves them as they are, and the status names what git lacks.
func TestOwnKeyWithPermissionsOfGit(t *testing.T) {
	const path = "config/resources/core/ignition/security-properties/config.json"
	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.ResetPermissions = true })
	p.spec.api = "{managed: true}"
	content := p.read(path)
	commit := p.repo.Commit("first", site(gitserver.Write("services/gw/"+path, content))...)
	p.start()
	p.reason("GatewayForbidden")
	p.stop()
	require.NoError(t, p.gw.Restart(0))
	p.start()
	s := p.await("the status names what git lacks", func(s state) bool { return strings.Contains(s.Message, "git has ") })
	assert.Equal(t, "GatewayForbidden", s.Reason)
	assert.Contains(t, s.Message, "git has "+path)
	assert.Contains(t, s.Message, `{"name": "Authenticated", "children": [{"name": "Stoker", "children": []}]}`)
	assert.Equal(t, content, p.read(path))
	assert.Equal(t, commit, s.Commit)
}
