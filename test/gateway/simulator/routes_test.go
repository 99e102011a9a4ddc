package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
	"stoker.io/stoker/test/leak"
	"stoker.io/stoker/test/trees"
)

// shape is the JSON type of each field of an object in a response.
type shape map[string]any

const (
	text     = "string"
	number   = "number"
	truth    = "bool"
	list     = "array"
	anything = "any"
)

// listOf returns the shape of a page of a list.
func listOf(item shape) shape {
	return shape{"items": []shape{item}, "metadata": shape{"total": number, "matching": number, "limit": number, "offset": number}}
}

var (
	scanShape = shape{"scanActive": truth, "lastScanTimestamp": number, "lastScanDuration": number}
	lockShape = shape{"timestamp": number, "remaining": number, "actor": text}
	project   = shape{"name": text, "description": text, "title": text, "enabled": truth, "parent": text, "inheritable": truth,
		"invalidParent": truth, "mutable": truth}
	designer = shape{"id": text, "user": text, "uptime": number, "lastcomm": number, "timeout": number,
		"memory": shape{"used": number, "max": number}, "project": text, "address": text, "timezone": text}
	named = shape{"name": text, "enabled": truth, "modes": list}
	entry = shape{"name": text, "enabled": truth, "modes": list, "collection": text, "description": text, "signature": text, "config": anything}
)

// table has the routes of the gateway that need a token, from the vendor's OpenAPI document of 8.3.8. TestRoutes fails if a
// route exists only in the simulator or only in the table.
var table = []struct {
	route  string // as the simulator registers it
	ask    string // path and query of the example, if the route has parameters
	body   string
	status int
	shape  shape
}{
	{route: "GET /data/api/v1/scan/{kind}", ask: "/data/api/v1/scan/projects", status: 200, shape: scanShape},
	{route: "POST /data/api/v1/scan/{kind}", ask: "/data/api/v1/scan/config", status: 200, shape: scanShape},
	{route: "GET /data/api/v1/scan-lock/{kind}", ask: "/data/api/v1/scan-lock/projects", status: 204},
	{route: "POST /data/api/v1/scan-lock/{kind}", ask: "/data/api/v1/scan-lock/config", body: `{"acquireTimeout":10,"holdTimeout":60}`, status: 200, shape: lockShape},
	{route: "GET /data/api/v1/gateway-info", status: 200, shape: shape{"name": text, "redundancyRole": text, "edition": text,
		"ignitionVersion": text, "deploymentMode": text, "timeZone": text, "timeZoneId": text, "allowUnsignedModules": truth, "license": shape{"mode": text}}},
	{route: "GET /data/api/v1/redundancy", status: 200, shape: shape{"role": text, "projectState": text, "activityLevel": text, "localId": text,
		"peerConnected": truth, "peerId": text, "hasConfigAccess": truth, "syncPending": truth, "failoverPending": truth, "uptime": number, "lastSyncTimestamp": number}},
	{route: "GET /data/api/v1/designers", status: 200, shape: listOf(designer)},
	{route: "GET /data/api/v1/designer/{id}", ask: "/data/api/v1/designer/designer-1", status: 200, shape: designer},
	{route: "DELETE /data/api/v1/designer/{id}", ask: "/data/api/v1/designer/designer-2", status: 200, shape: shape{}},
	{route: "GET /data/api/v1/projects/list", status: 200, shape: listOf(project)},
	{route: "GET /data/api/v1/projects/names", status: 200, shape: listOf(shape{"name": text})},
	{route: "GET /data/api/v1/projects/find/{name}", ask: "/data/api/v1/projects/find/P", status: 200, shape: project},
	{route: "GET /data/api/v1/resources/names/{module}/{type}", ask: "/data/api/v1/resources/names/ignition/tag-provider", status: 200, shape: listOf(named)},
	{route: "GET /data/api/v1/resources/list/{module}/{type}", ask: "/data/api/v1/resources/list/ignition/tag-provider", status: 200, shape: listOf(entry)},
	{route: "GET /data/api/v1/resources/find/{module}/{type}/{name...}", ask: "/data/api/v1/resources/find/ignition/tag-provider/default", status: 200, shape: entry},
	{route: "GET /data/api/v1/resources/singleton/{module}/{type}", ask: "/data/api/v1/resources/singleton/ignition/system-properties", status: 200, shape: entry},
	{route: "GET /data/api/v1/logs", ask: "/data/api/v1/logs?minLevel=ERROR&limit=10", status: 200, shape: shape{"items": []shape{{"timestamp": number, "loggerName": text, "level": text, "message": text}}}},
	{route: "GET /data/api/v1/restart-tasks/pending", status: 200, shape: shape{"pending": list}},
	{route: "POST /data/api/v1/restart-tasks/restart", status: 400},
	{route: "GET /data/api/v1/mode", status: 200, shape: listOf(shape{"name": text, "title": text, "description": text, "resourceCount": number})},
	{route: "GET /data/api/v1/trial", status: 200, shape: shape{"licenseMode": text, "trialState": text, "trialSecondsLeft": number, "expired": truth, "emergency": truth}},
	{route: "GET /data/api/v1/modules/healthy", status: 200, shape: listOf(shape{"id": text, "name": text, "state": text})},
	{route: "GET /data/api/v1/overview", status: 200, shape: shape{"name": text, "version": text, "designerSessions": number, "projects": number}},
	{route: "GET /data/api/v1/tags/export", ask: "/data/api/v1/tags/export?provider=MQTT+Engine&type=json&recursive=true", status: 200, shape: shape{"name": text, "tagType": text, "tags": list}},
	{route: "GET /data/api/v1/backup", status: 200},
	{route: "GET /openapi.json", status: 200, shape: shape{"openapi": text, "info": shape{"title": text, "version": text}, "paths": anything}},
}

func TestRoutes(t *testing.T) {
	b := withProject(t, Options{})
	for range 2 {
		_, err := b.Designers.Open("ann", "P")
		require.NoError(t, err)
	}
	b.Logs.Error("Tags", "overload")
	require.NoError(t, b.Noise.Make(NoiseModuleTags))
	known := map[string]bool{}
	for _, row := range table {
		known[row.route] = true
		t.Run(row.route, func(t *testing.T) {
			method, path, _ := strings.Cut(row.route, " ")
			if row.ask != "" {
				path = row.ask
			}
			status, body := b.ask(method, path, row.body)
			require.Equal(t, row.status, status, body)
			if row.shape == nil {
				return
			}
			var doc any
			require.NoError(t, json.Unmarshal([]byte(body), &doc), body)
			fits(t, "", row.shape, doc)

			status, _ = b.send(method, b.URL()+path, row.body)
			assert.Equal(t, http.StatusUnauthorized, status, "without a token")
		})
	}
	_, body := b.ask("GET", "/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &doc))
	simulated := map[string]bool{}
	for path, verbs := range doc.Paths {
		for verb := range verbs {
			simulated[strings.ToUpper(verb)+" "+path] = true
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(simulated)))
}

func fits(t *testing.T, at string, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case shape:
		doc, ok := got.(map[string]any)
		require.True(t, ok, "%s is not an object: %v", at, got)
		assert.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(doc)), at)
		for key, kind := range want {
			fits(t, at+"/"+key, kind, doc[key])
		}
	case []shape:
		items, ok := got.([]any)
		require.True(t, ok, "%s is not a list: %v", at, got)
		require.NotEmpty(t, items, "%s: an empty list shows no shape", at)
		for _, item := range items {
			fits(t, at+"[]", want[0], item)
		}
	case string:
		kinds := map[string]any{text: "", number: 0.0, truth: false, list: []any{}}
		if example, ok := kinds[want]; ok {
			assert.IsType(t, example, got, at)
		}
	}
}

func TestMain(m *testing.M) { leak.Main(m) }

const (
	bound       = 20 * time.Second // of each wait
	projectJSON = `{"title":"","description":"","parent":"","enabled":true,"inheritable":false}`
	view        = "com.inductiveautomation.perspective/views/Main"
)

// bench is a simulated gateway with the helpers of a test.
type bench struct {
	*Gateway
	t    *testing.T
	dir  string
	http *http.Client
}

func start(t *testing.T, opts Options) bench {
	t.Helper()
	if opts.Data == "" {
		opts.Data = t.TempDir()
	}
	g, err := Start(opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	client := &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(client.CloseIdleConnections)
	return bench{g, t, opts.Data, client}
}

// put writes a file in the data directory.
func (b bench) put(name, content string) {
	b.t.Helper()
	full := filepath.Join(b.dir, filepath.FromSlash(name))
	require.NoError(b.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(b.t, os.WriteFile(full, []byte(content), 0o644))
}

func (b bench) read(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.dir, filepath.FromSlash(name)))
	require.NoError(b.t, err)
	return string(raw)
}

// resource writes a resource with one data file.
func (b bench) resource(dir, file, content string) {
	b.t.Helper()
	b.put(dir+"/"+file, content)
	b.put(dir+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["`+file+`"],"attributes":{}}`)
}

// ask sends a request with the gateway's token.
func (b bench) ask(method, path, body string, headers ...string) (int, string) {
	b.t.Helper()
	return b.send(method, b.URL()+path, body, append([]string{"X-Ignition-API-Token", b.Token()}, headers...)...)
}

// admin sends a request to the simulator's own interface.
func (b bench) admin(method, path, body string) (int, string) {
	b.t.Helper()
	return b.send(method, b.AdminURL()+path, body)
}

func (b bench) send(method, url, body string, headers ...string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, url, strings.NewReader(body))
	require.NoError(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := b.http.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp.StatusCode, string(raw)
}

const viewDir = "projects/P/" + view

// scanned posts a scan and waits for its end.
func (b bench) scanned(kind string) {
	b.t.Helper()
	before := b.Scans.Completed(kind)
	status, body := b.ask("POST", "/data/api/v1/scan/"+kind, "")
	require.Equal(b.t, 200, status, body)
	require.Eventually(b.t, func() bool { return b.Scans.Completed(kind) > before }, bound, time.Millisecond)
}

func withProject(t *testing.T, opts Options) bench {
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
			b := withProject(t, Options{})
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
	b := withProject(t, Options{})
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
			b := start(t, Options{Unknowns: Unknowns{SignConfig: sign}})
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
	master := withProject(t, Options{Role: "Master"})
	backup := start(t, Options{Role: "Backup"})
	pair, err := NewPair(master.Gateway, backup.Gateway)
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

	_, err = NewPair(backup.Gateway, master.Gateway)
	require.Error(t, err)
}

func TestCanaries(t *testing.T) {
	for name, harm := range map[string]func(b bench) error{
		"config/ignition/tags/valueStore.idb":               func(b bench) error { return os.Remove(filepath.Join(b.dir, "config/ignition/tags/valueStore.idb")) },
		"config/local/ignition/keystore/metro-keystore.pfx": func(b bench) error { return os.RemoveAll(filepath.Join(b.dir, "config/local")) },
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
			b := start(t, Options{})
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

// open opens a real Ignition tree, which is not part of the project.
func open(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func copyTree(t *testing.T, from *os.Root, dir string) {
	t.Helper()
	to, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { assert.NoError(t, to.Close()) }()
	require.NoError(t, fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := datadir.Read(from, name)
		require.NoError(t, err)
		return datadir.Write(to, name, raw)
	}))
}

// The write-back must not change a resource.json that a real gateway has signed, because the simulator computes the same signature.
func TestRealTree(t *testing.T) {
	root := open(t, trees.Gateway83(t))
	dir := t.TempDir()
	copyTree(t, root, dir)
	g, err := Start(Options{Data: dir, Mode: "dev", Seeding: SeedNone, Unknowns: Unknowns{SignConfig: true}})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	state, reason := g.State()
	require.Equal(t, Running, state, reason)
	assert.Empty(t, g.Data.LoadErrors())
	changed := 0
	require.NoError(t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		want, err := datadir.Read(root, name)
		require.NoError(t, err)
		got, err := datadir.Read(g.root, name)
		require.NoError(t, err)
		if string(got) != string(want) {
			changed++
			assert.Equal(t, resource.File, path.Base(name), name)
		}
		return nil
	}))
	// One signature that does not match, and seven resources that were never signed.
	assert.Equal(t, 8, changed)
}

func TestRestartForgetsScans(t *testing.T) {
	b := start(t, Options{Unknowns: Unknowns{ForgetScans: true}})
	const forgotten = `"lastScanTimestamp":0,`
	_, body := b.ask("GET", "/data/api/v1/scan/projects", "")
	assert.NotContains(t, body, forgotten)
	require.NoError(t, b.Restart(0))
	_, body = b.ask("GET", "/data/api/v1/scan/projects", "")
	assert.Contains(t, body, forgotten)
	assert.Equal(t, 1, b.Scans.Completed("projects"))
}
