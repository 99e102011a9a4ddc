package simulator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestFilesLoadAfterScan(t *testing.T) {
	b := withProject(t, simulator.Options{})
	before := b.Data.Loaded(viewDir)
	b.put(viewDir+"/view.json", `{"v":2}`)
	assert.Equal(t, before, b.Data.Loaded(viewDir))
	b.scanned("projects")
	assert.NotEqual(t, before, b.Data.Loaded(viewDir))
	require.NoError(t, os.RemoveAll(filepath.Join(b.dir, viewDir)))
	b.scanned("projects")
	assert.Nil(t, b.Data.Loaded(viewDir))
	require.NoError(t, os.Remove(filepath.Join(b.dir, "projects/P/project.json")))
	b.scanned("projects")
	assert.Nil(t, b.Data.Loaded("projects/P"), "a directory without project.json must not load as a project")
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

func TestWriteBackDisabled(t *testing.T) {
	b := withProject(t, simulator.Options{NoWriteBack: true, NoBlobs: true})
	assert.NotContains(t, b.read(viewDir+"/resource.json"), "external")
	blobs, err := os.ReadDir(filepath.Join(b.dir, "projects/.resources"))
	require.NoError(t, err)
	assert.Len(t, blobs, 1, "only the file of the seed may exist")
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

func TestLaterCollectionsOverrideEarlier(t *testing.T) {
	b := start(t, simulator.Options{Mode: "dev"})
	b.put("config/resources/dev/config-mode.json", `{"title":"Dev","parent":"core"}`)
	for _, c := range []string{"external", "core", "dev"} {
		b.resource("config/resources/"+c+"/ignition/schedule/x", "config.json", `{"from":"`+c+`"}`)
	}
	b.scanned("config")
	_, body := b.ask("GET", "/data/api/v1/resources/find/ignition/schedule/x", "")
	assert.Contains(t, body, `"from":"dev"`)
	assert.Contains(t, body, `"modes":["external","core","dev"]`)
	_, body = b.ask("GET", "/data/api/v1/mode", "")
	assert.Contains(t, body, `"name":"dev","title":"Dev"`)
}

func TestScanIsAsynchronous(t *testing.T) {
	b := start(t, simulator.Options{ClockSkew: -time.Hour})
	require.NoError(t, b.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	_, body := b.ask("POST", scanPath, "")
	first := scanOf(t, body)
	assert.True(t, first.ScanActive)
	_, body = b.ask("POST", scanPath, "")
	assert.True(t, scanOf(t, body).ScanActive)
	passes := b.Scans.Completed("projects")
	require.NoError(t, b.Scans.Fault("projects", simulator.ScanFault{}))
	require.Eventually(t, func() bool {
		_, body := b.ask("GET", scanPath, "")
		return !scanOf(t, body).ScanActive
	}, bound, time.Millisecond)
	assert.Equal(t, passes+2, b.Scans.Completed("projects"), "the second POST must start one more scan")
	_, body = b.ask("GET", scanPath, "")
	assert.Greater(t, scanOf(t, body).LastScanTimestamp, first.LastScanTimestamp)
}

type scanAnswer struct {
	ScanActive        bool
	LastScanTimestamp int64
}

func scanOf(t *testing.T, body string) scanAnswer {
	t.Helper()
	var a scanAnswer
	require.NoError(t, json.Unmarshal([]byte(body), &a))
	return a
}

func TestStrictScanRoutes(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict %t", strict), func(t *testing.T) {
			b := start(t, simulator.Options{Strict: strict})
			want := map[bool]int{false: 200, true: 400}[strict]
			status, _ := b.ask("POST", scanPath+"?updateDesigners=true", "")
			assert.Equal(t, want, status)
			status, _ = b.ask("POST", scanPath, "{}")
			assert.Equal(t, want, status)
			status, _ = b.ask("POST", scanPath, "")
			assert.Equal(t, 200, status)
			assert.Equal(t, strict, len(b.Requests.Violations()) == 2)
			assert.Equal(t, 3, b.Requests.Count("POST "+scanPath))
		})
	}
}

func TestScanLock(t *testing.T) {
	b := start(t, simulator.Options{})
	status, _ := b.ask("GET", lockPath, "")
	assert.Equal(t, 204, status)
	for _, body := range []string{"", "x", `{"holdTimeout":-1}`, `{"holdTimeout":"1"}`, `{"holdTimeout":100000000}`} {
		t.Run(fmt.Sprintf("%q", body), func(t *testing.T) {
			status, _ := b.ask("POST", lockPath, body)
			assert.Equal(t, 400, status)
		})
	}
	status, body := b.ask("POST", lockPath, `{}`)
	assert.Equal(t, 200, status)
	assert.Contains(t, body, `"actor":"stoker"`)
	status, _ = b.ask("POST", lockPath, `{}`)
	assert.Equal(t, 409, status)
	status, _ = b.ask("GET", lockPath, "")
	assert.Equal(t, 200, status)
	b.scanned("projects")
	status, _ = b.ask("GET", lockPath, "")
	assert.Equal(t, 204, status, "a scan must release the lock")
	status, _ = b.ask("POST", "/data/api/v1/scan-lock/nothing", `{}`)
	assert.Equal(t, 404, status)
}

func TestDesignerSave(t *testing.T) {
	b := withProject(t, simulator.Options{})
	id, err := b.Designers.Open("ann", "P")
	require.NoError(t, err)
	require.NoError(t, b.Designers.OpenResource(id, view))
	save := func(force bool, content string) error {
		files := map[string][]byte{"view.json": []byte(content), "thumbnail.png": {1}}
		return b.Designers.SaveResource(t.Context(), id, view, files, force)
	}
	require.NoError(t, save(false, `{"v":2}`))
	assert.Equal(t, `{"v":2}`, b.read(viewDir+"/view.json"))
	saved := b.read(viewDir + "/resource.json")
	assert.Contains(t, saved, `"actor": "ann"`)
	assert.Len(t, b.Data.Loaded(viewDir), 2)
	b.scanned("projects")
	assert.Equal(t, saved, b.read(viewDir+"/resource.json"), "a scan must not sign a save again")
	require.NoError(t, save(false, `{"v":3}`), "a session must not conflict with its own save")

	b.put(viewDir+"/view.json", `{"v":"git"}`)
	b.scanned("projects")
	require.ErrorIs(t, save(false, `{"v":4}`), simulator.ErrConflict)
	require.NoError(t, save(true, `{"v":4}`))
	assert.Equal(t, `{"v":4}`, b.read(viewDir+"/view.json"))
	require.NoError(t, b.Canaries.Check())
}

func TestScanLockKeepsSavesWaiting(t *testing.T) {
	b := withProject(t, simulator.Options{})
	id, err := b.Designers.Open("ann", "P")
	require.NoError(t, err)
	require.NoError(t, b.Locks.Hold("projects", "x", time.Hour))
	require.NoError(t, b.Locks.Hold("config", "x", time.Hour))
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Designers.SaveResource(short, id, view, nil, true), context.DeadlineExceeded)
	require.ErrorIs(t, b.Administrator.SaveConfig(short, "core", "ignition/schedule/x", "ann", []byte("{}")), context.DeadlineExceeded)
	done := make(chan error, 2)
	go func() { done <- b.Designers.SaveResource(t.Context(), id, view, nil, true) }()
	go func() {
		done <- b.Administrator.SaveConfig(t.Context(), "core", "ignition/schedule/x", "ann", []byte("{}"))
	}()
	require.NoError(t, b.Locks.Release("projects"))
	require.NoError(t, <-done)
	require.NoError(t, b.Locks.Hold("config", "x", time.Millisecond)) // expires
	require.NoError(t, <-done)
}
