package simulator_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

func TestGatewayStates(t *testing.T) {
	b := start(t, simulator.Options{})
	for _, c := range []struct {
		to     simulator.State
		ping   string
		gwinfo string
		status int
	}{
		{simulator.Starting, `{"state":"STARTING"}`, "ContextStatus=STARTING;", 503},
		{simulator.Commissioning, `{"state":"RUNNING","details":"COMMISSIONING"}`, "ContextStatus=NEEDS_COMMISSIONING;", 302},
		{simulator.Faulted, `{"state":"FAULTED"}`, "ContextStatus=FAULTED;", 503},
		{simulator.Running, `{"state":"RUNNING"}`, "ContextStatus=RUNNING;", 200},
	} {
		t.Run(string(c.to), func(t *testing.T) {
			require.NoError(t, b.SetState(c.to))
			status, body := b.ask("GET", "/StatusPing", "")
			assert.Equal(t, 200, status)
			assert.Equal(t, c.ping, body)
			_, body = b.ask("GET", "/system/gwinfo", "")
			assert.Contains(t, body, c.gwinfo)
			status, _ = b.ask("GET", "/data/api/v1/gateway-info", "")
			assert.Equal(t, c.status, status)
		})
	}
	require.Error(t, b.SetState("ASLEEP"))
}

func TestGatewayRestartKeepsAddress(t *testing.T) {
	b := start(t, simulator.Options{Down: true})
	resp, err := b.http.Get(b.URL() + "/StatusPing")
	if err == nil {
		require.NoError(t, resp.Body.Close())
	}
	require.Error(t, err)
	assert.NoDirExists(t, filepath.Join(b.dir, "config"), "the image must seed only when the gateway starts")
	require.NoError(t, b.SetState(simulator.Running))
	status, _ := b.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 200, status)
}

func TestGatewayRestartReloadsDisk(t *testing.T) {
	b := start(t, simulator.Options{})
	b.put("projects/P/project.json", projectJSON)
	require.NoError(t, b.Restart(time.Hour))
	assert.Equal(t, "STARTING", b.state())
	require.NoError(t, b.Restart(20*time.Millisecond))
	require.Eventually(t, func() bool { return b.state() == "RUNNING" }, bound, time.Millisecond)
	assert.NotNil(t, b.Data.Loaded("projects/P"))
}

func TestCommissioning(t *testing.T) {
	b := start(t, simulator.Options{Commissioning: true})
	assert.Equal(t, "COMMISSIONING", b.state())
	status, body := b.admin("POST", "/state", `{"state":"RUNNING"}`)
	assert.Equal(t, 200, status, body)
	assert.Equal(t, "RUNNING", b.state())
}

func TestInvalidDirectoryFaults(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(b bench)
		mode string
		says string
	}{
		"external without config-mode.json": {func(b bench) {
			require.NoError(b.t, os.Remove(filepath.Join(b.dir, "config/resources/external/config-mode.json")))
			b.resource("config/resources/external/ignition/x/y", "config.json", "{}")
		}, "", "exists but is not empty"},
		"project resource without attributes": {func(b bench) {
			b.put("projects/P/project.json", projectJSON)
			b.put("projects/P/"+view+"/resource.json", `{"scope":"G","version":1,"files":[]}`)
		}, "", "ProjectResourceBuilder.setAttributes"},
		"singleton only in a mode": {func(b bench) {
			b.resource("config/resources/dev/ignition/only-here", "config.json", "{}")
		}, "dev", "only-here"},
		"directory that cannot be written to": {func(b bench) {
			require.NoError(b.t, os.RemoveAll(filepath.Join(b.dir, "var")))
			b.put("var", "")
		}, "", "cannot be written to"},
		"no core": {func(b bench) {
			require.NoError(b.t, os.RemoveAll(filepath.Join(b.dir, "config/resources/core")))
		}, "", "no resource collection core"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, simulator.Options{Mode: c.mode})
			c.harm(b)
			require.NoError(t, b.Restart(0))
			state, reason := b.State()
			assert.Equal(t, simulator.Faulted, state)
			assert.Contains(t, reason, c.says)
			_, body := b.admin("GET", "/state", "")
			assert.Contains(t, body, "FAULTED")
		})
	}
}

// An error that faults a cold start is only a load error for a running gateway.
func TestMissingAttributes(t *testing.T) {
	b := start(t, simulator.Options{})
	b.put("projects/P/project.json", projectJSON)
	b.put("projects/P/"+view+"/resource.json", `{"scope":"G","version":1,"files":[]}`)
	require.NoError(t, b.Scans.Run("projects"))
	assert.Equal(t, "RUNNING", b.state())
	require.Len(t, b.Data.LoadErrors(), 1)
	assert.Contains(t, b.Data.LoadErrors()[0], "no attributes")
}
