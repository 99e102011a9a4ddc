package simulator_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

func TestEmptyDirectoryIsSeeded(t *testing.T) {
	for _, how := range []simulator.Seeding{simulator.SeedImage, simulator.SeedChart} {
		b := start(t, simulator.Options{Seeding: how})
		assert.Equal(t, "RUNNING", b.state())
		for _, name := range []string{
			".ignition-seed-complete", "config/resources/core/config-mode.json", "config/resources/external/config-mode.json",
			"config/resources/local/config-mode.json", "config/ignition/tags/valueStore.idb", "redundancy.xml",
		} {
			t.Run(name, func(t *testing.T) {
				assert.FileExists(t, filepath.Join(b.dir, name))
			})
		}
		assert.DirExists(t, filepath.Join(b.dir, "projects/.resources"))
		require.NoError(t, b.Canaries.Check())
		assert.Empty(t, b.Data.LoadErrors())
	}
}

// A lock file of the agent in an unseeded directory would fault a real gateway like this.
func TestUnseededDirectoryFaults(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o644))
	b := start(t, simulator.Options{Data: dir})
	state, reason := b.State()
	assert.Equal(t, simulator.Faulted, state)
	assert.Contains(t, reason, "never seeded")
	assert.NoDirExists(t, filepath.Join(dir, "config"))
}

func TestChartSeedsOnce(t *testing.T) {
	dir := t.TempDir()
	b := bench{t: t, dir: dir}
	b.put("config/resources/core/ignition/system-properties/config.json", `{"systemName":"mine"}`)
	b = start(t, simulator.Options{Data: dir, Seeding: simulator.SeedChart, Down: true})
	assert.Contains(t, b.read("config/resources/core/ignition/system-properties/config.json"), `"systemName": "gateway"`)
	b.put("config/resources/core/ignition/system-properties/config.json", `{"systemName":"mine"}`)
	require.NoError(t, b.SetState(simulator.Running))
	assert.Contains(t, b.read("config/resources/core/ignition/system-properties/config.json"), "mine")
}

func TestSecondStartKeepsDirectory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, simulator.Options{Data: dir})
	first.put("projects/P/project.json", projectJSON)
	require.NoError(t, first.Restart(0))
	require.NotNil(t, first.Data.Loaded("projects/P"))
	second := start(t, simulator.Options{Data: dir, Token: first.Token()})
	assert.Equal(t, "RUNNING", second.state())
	assert.Equal(t, first.Token(), second.Token())
	assert.NotNil(t, second.Data.Loaded("projects/P"))
	status, _ := second.ask("GET", "/data/api/v1/gateway-info", "")
	assert.Equal(t, 200, status)
}

func TestCanaries(t *testing.T) {
	for name, harm := range map[string]func(b bench) error{
		"config/ignition/tags/valueStore.idb":            func(b bench) error { return os.Remove(filepath.Join(b.dir, "config/ignition/tags/valueStore.idb")) },
		"config/local/ignition/keystore/metro-keystore.": func(b bench) error { return os.RemoveAll(filepath.Join(b.dir, "config/local")) },
		"redundancy.xml": func(b bench) error {
			return os.WriteFile(filepath.Join(b.dir, "redundancy.xml"), []byte("x"), 0o644)
		},
		"projects/.resources/": func(b bench) error { return os.RemoveAll(filepath.Join(b.dir, "projects/.resources")) },
		"var/new":              func(b bench) error { return os.WriteFile(filepath.Join(b.dir, "var/new"), nil, 0o644) },
		"modules.json": func(b bench) error {
			name := filepath.Join(b.dir, "modules.json")
			return os.Rename(name, name+".old")
		},
		"gateway.xml": func(b bench) error {
			name := filepath.Join(b.dir, "gateway.xml")
			if err := os.Remove(name); err != nil {
				return err
			}
			return os.Symlink("/etc/hostname", name)
		},
		"config/resources/local/ignition/api-token": func(b bench) error {
			return os.RemoveAll(filepath.Join(b.dir, "config/resources/local/ignition"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, simulator.Options{})
			require.NoError(t, harm(b))
			assert.ErrorContains(t, b.Canaries.Check(), name)
			status, body := b.admin("GET", "/canaries", "")
			assert.Equal(t, 400, status)
			assert.Contains(t, body, name)
			require.NoError(t, b.Canaries.Record())
			assert.NoError(t, b.Canaries.Check())
		})
	}
}

func TestCanariesIgnoreOtherFiles(t *testing.T) {
	b := start(t, simulator.Options{})
	b.put(".stoker/manifest", "x")
	b.put(".stoker/lost+found/valueStore.idb", "x")
	b.put("config/resources/core/ignition/system-properties/config.json", "{}")
	b.resource("projects/P/"+view, "view.json", "{}")
	require.NoError(t, os.RemoveAll(filepath.Join(b.dir, "config/resources/external")))
	assert.NoError(t, b.Canaries.Check())
}
