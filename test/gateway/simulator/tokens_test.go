package simulator_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

func TestTokenPermissions(t *testing.T) {
	const info, scan = "/data/api/v1/gateway-info", "/data/api/v1/scan/projects"
	own := []string{"Authenticated/ApiKeys/Stoker"}
	for name, c := range map[string]struct {
		headers   func(b bench) []string
		get, post int
		unknown   simulator.Unknowns
	}{
		"own token":   {headers: func(b bench) []string { return []string{"X-Ignition-API-Token", b.Token()} }, get: 200, post: 200},
		"none":        {headers: func(bench) []string { return nil }, get: 401, post: 401},
		"key only":    {headers: func(b bench) []string { return []string{"X-Ignition-API-Token", b.Token()[len("stoker:"):]} }, get: 401, post: 401},
		"wrong key":   {headers: func(bench) []string { return []string{"X-Ignition-API-Token", "stoker:AAAA"} }, get: 401, post: 401},
		"basic auth":  {headers: func(bench) []string { return []string{"Authorization", "Basic YWRtaW46cGFzc3dvcmQ="} }, get: 401, post: 401},
		"bearer":      {headers: func(b bench) []string { return []string{"Authorization", "Bearer " + b.Token()} }, get: 401, post: 401},
		"no level":    {headers: issued(simulator.TokenSpec{Name: "n"}), get: 403, post: 403},
		"other level": {headers: issued(simulator.TokenSpec{Name: "n", Levels: []string{"Authenticated/ApiKeys"}}), get: 403, post: 403},
		"level below": {headers: issued(simulator.TokenSpec{Name: "n", Levels: []string{"Authenticated/ApiKeys/Stoker/More"}}), get: 200, post: 200},
		"role level":  {headers: issued(simulator.TokenSpec{Name: "n", Levels: []string{"Authenticated/Roles/Administrator"}}), get: 403, post: 403},
		"secure":      {headers: issued(simulator.TokenSpec{Name: "n", Levels: own, Secure: true}), get: 403, post: 403},
		"secure, by the other source": {headers: issued(simulator.TokenSpec{Name: "n", Levels: own, Secure: true}), get: 401, post: 401,
			unknown: simulator.Unknowns{InsecureIs401: true}},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, simulator.Options{Unknowns: c.unknown})
			headers := c.headers(b)
			status, body := b.send("GET", b.URL()+info, "", headers...)
			assert.Equal(t, c.get, status)
			if status != 200 {
				assert.Contains(t, body, "<th>MESSAGE:</th>")
			}
			status, _ = b.send("POST", b.URL()+scan, "", headers...)
			assert.Equal(t, c.post, status)
		})
	}
}

func issued(spec simulator.TokenSpec) func(bench) []string {
	return func(b bench) []string {
		token, err := b.Administrator.IssueToken(spec)
		require.NoError(b.t, err)
		return []string{"X-Ignition-API-Token", token}
	}
}

// A token file and changed permissions take effect after a config scan.
func TestPermissionsLoadAfterScan(t *testing.T) {
	b := start(t, simulator.Options{})
	const name = "config/resources/core/ignition/security-properties/config.json"
	b.put(name, `{"readPermissions":{"type":"AnyOf","securityLevels":[]},"writePermissions":{"type":"AllOf","securityLevels":[`+
		`{"name":"Authenticated","children":[]},{"name":"Authenticated","children":[{"name":"Nobody","children":[]}]}]}}`)
	status, _ := b.ask("POST", "/data/api/v1/scan/projects", "")
	assert.Equal(t, 200, status, "before a scan, the old permissions must apply")
	require.NoError(t, b.Scans.Run("config"))
	status, _ = b.ask("POST", "/data/api/v1/scan/projects", "")
	assert.Equal(t, 403, status)
	status, _ = b.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 200, status)
}

func TestFirstStartDropsGrants(t *testing.T) {
	b := start(t, simulator.Options{ResetPermissions: true})
	status, _ := b.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 403, status)
	require.NoError(t, b.Restart(0))
	require.NoError(t, b.Administrator.Grant("Authenticated/ApiKeys/Stoker"))
	require.NoError(t, b.Restart(0))
	status, _ = b.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 200, status, "a later start must keep the grants")
}
