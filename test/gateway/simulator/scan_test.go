package simulator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

const (
	scanPath = "/data/api/v1/scan/projects"
	lockPath = "/data/api/v1/scan-lock/projects"
	viewDir  = "projects/P/" + view
)

// scanned posts a scan and waits for its end.
func (b bench) scanned(kind string) {
	b.t.Helper()
	before := b.Scans.Completed(kind)
	status, body := b.ask("POST", "/data/api/v1/scan/"+kind, "")
	require.Equal(b.t, 200, status, body)
	require.Eventually(b.t, func() bool { return b.Scans.Completed(kind) > before }, bound, time.Millisecond)
}

func withProject(t *testing.T, opts simulator.Options) bench {
	b := start(t, opts)
	b.put("projects/P/project.json", projectJSON)
	b.resource(viewDir, "view.json", `{"v":1}`)
	require.NoError(t, b.Scans.Run("projects"))
	require.Empty(t, b.Data.LoadErrors())
	return b
}

// A scan during a write reads the torn file. The resource loaded before stays, and the log reports the
// error.
func TestTornWritesAreLoadErrors(t *testing.T) {
	for name, harm := range map[string]func(b bench){
		"truncated data file":     func(b bench) { b.put(viewDir+"/view.json", `{"v":`) },
		"missing listed file":     func(b bench) { require.NoError(b.t, os.Remove(filepath.Join(b.dir, viewDir, "view.json"))) },
		"truncated resource.json": func(b bench) { b.put(viewDir+"/resource.json", `{"scope":`) },
		"no attributes":           func(b bench) { b.put(viewDir+"/resource.json", `{"scope":"G","version":1,"files":["view.json"]}`) },
		"path in the list of files": func(b bench) {
			b.put(viewDir+"/resource.json", `{"scope":"G","version":1,"files":["../x"],"attributes":{}}`)
		},
		"truncated project.json": func(b bench) { b.put("projects/P/project.json", `{`) },
	} {
		t.Run(name, func(t *testing.T) {
			b := withProject(t, simulator.Options{})
			before := b.Data.Loaded(viewDir)
			harm(b)
			b.scanned("projects")
			assert.Equal(t, before, b.Data.Loaded(viewDir))
			require.Len(t, b.Data.LoadErrors(), 1)
			assert.Contains(t, b.Data.LoadErrors()[0], "projects/P")
			_, body := b.ask("GET", "/data/api/v1/logs?minLevel=ERROR", "")
			assert.Contains(t, body, "could not load projects/P")
		})
	}
}

func TestProjectScanSigning(t *testing.T) {
	b := withProject(t, simulator.Options{})
	signed := b.read(viewDir + "/resource.json")
	assert.Contains(t, signed, `"actor": "external"`)
	assert.False(t, strings.HasSuffix(signed, "\n"))
	b.scanned("projects")
	assert.Equal(t, signed, b.read(viewDir+"/resource.json"), "signed files must not change")
	b.put(viewDir+"/view.json", `{"v":2}`)
	b.scanned("projects")
	again := b.read(viewDir + "/resource.json")
	assert.NotEqual(t, signed, again)
	require.NoError(t, b.Canaries.Check())
	for file, digest := range b.Data.Loaded(viewDir) {
		assert.Equal(t, b.read(viewDir+"/"+file), b.read("projects/.resources/"+digest))
	}
}

func TestConfigScanSigning(t *testing.T) {
	for _, sign := range []bool{false, true} {
		t.Run(fmt.Sprintf("signs %t", sign), func(t *testing.T) {
			b := start(t, simulator.Options{Unknowns: simulator.Unknowns{SignConfig: sign}})
			for _, c := range []string{"core", "external"} {
				b.resource("config/resources/"+c+"/ignition/schedule/x", "config.json", "{}")
			}
			b.scanned("config")
			assert.Equal(t, sign, strings.Contains(b.read("config/resources/core/ignition/schedule/x/resource.json"), "external"))
			assert.NotContains(t, b.read("config/resources/external/ignition/schedule/x/resource.json"), "external")
		})
	}
}

func TestPairReplication(t *testing.T) {
	master := withProject(t, simulator.Options{Role: "Master"})
	backup := start(t, simulator.Options{Role: "Backup"})
	pair, err := simulator.NewPair(master.Gateway, backup.Gateway)
	require.NoError(t, err)
	assert.NotNil(t, backup.Data.Loaded(viewDir))
	_, body := backup.ask("GET", "/data/api/v1/redundancy", "")
	assert.Contains(t, body, `"hasConfigAccess":false`)

	const night = "/ignition/schedule/night"
	master.resource("config/resources/core"+night, "config.json", `{}`)
	master.resource("config/resources/external"+night, "config.json", `{}`)
	master.put("projects/P/README.md", "beside")
	master.put(viewDir+"/view.json", `{"v":2}`)
	pair.Pause(true)
	master.scanned("config")
	assert.Nil(t, backup.Data.Loaded("config/resources/core"+night))
	pair.Pause(false)
	master.scanned("projects")
	require.Eventually(t, func() bool {
		return backup.Data.Loaded("config/resources/core"+night) != nil && cmp.Equal(master.Data.Loaded(viewDir), backup.Data.Loaded(viewDir))
	}, bound, time.Millisecond)
	assert.NoFileExists(t, filepath.Join(backup.dir, "config/resources/external"+night, "config.json"))
	assert.NoFileExists(t, filepath.Join(backup.dir, "projects/P/README.md"), "files outside resources must not be copied")
	require.NoError(t, backup.Canaries.Check())

	// After a failover, replication goes the other way, including deletions.
	pair.Failover(true)
	require.NoError(t, os.RemoveAll(filepath.Join(backup.dir, viewDir)))
	require.NoError(t, backup.Scans.Run("projects"))
	assert.Nil(t, master.Data.Loaded(viewDir))
	_, body = master.ask("GET", "/data/api/v1/redundancy", "")
	assert.Contains(t, body, `"hasConfigAccess":false`)

	_, err = simulator.NewPair(backup.Gateway, master.Gateway)
	require.Error(t, err)
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
