package simulator_test

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

func (b bench) adminOK(method, path, body string) map[string]any {
	b.t.Helper()
	status, answer := b.admin(method, path, body)
	require.Equal(b.t, 200, status, answer)
	var doc map[string]any
	if json.Unmarshal([]byte(answer), &doc) != nil {
		return nil // the response is a list
	}
	return doc
}

func TestRouteFaults(t *testing.T) {
	b := start(t, simulator.Options{})
	b.adminOK("POST", "/faults", `{"route":"GET /data/api/v1/gateway-info","status":500,"times":2,"delay":"1ms"}`)
	var got []int
	for range 3 {
		status, _ := b.ask("GET", "/data/api/v1/gateway-info", "")
		got = append(got, status)
	}
	assert.Equal(t, []int{500, 500, 200}, got)
	b.adminOK("POST", "/faults", `{"route":"* /data/*","reset":true}`)
	resp, err := b.http.Get(b.URL() + "/data/api/v1/trial")
	require.NoError(t, err, "the answer must begin")
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err, "the answer must break off")
	require.NoError(t, resp.Body.Close())
	_, body := b.ask("GET", "/StatusPing", "")
	assert.Contains(t, body, "RUNNING", "another route must not change")
	_, list := b.admin("GET", "/faults", "")
	assert.Contains(t, list, `"reset": true`)
	b.adminOK("DELETE", "/faults", "")
	status, _ := b.ask("GET", "/data/api/v1/trial", "")
	assert.Equal(t, 200, status)
}

func TestFaultAfterWork(t *testing.T) {
	b := start(t, simulator.Options{})
	before := b.Scans.Completed("projects")
	require.NoError(t, b.Faults.Add(simulator.Fault{Route: "POST " + scanPath, Status: 500, After: true, Times: 1}))
	status, _ := b.ask("POST", scanPath, "")
	assert.Equal(t, 500, status)
	require.Eventually(t, func() bool { return b.Scans.Completed("projects") == before+1 }, bound, time.Millisecond)
}

func TestInvalidAdminRequests(t *testing.T) {
	b := start(t, simulator.Options{})
	for path, body := range map[string]string{
		"/faults":      `{"route":"GET /x","statsu":500}`,
		"/scan-faults": `{"kind":"all"}`,
		"/locks":       `{"kind":"projects","for":5}`,
		"/state":       `{"state":"ASLEEP"}`,
		"/scan/all":    "",
		"/config":      `{"collection":"external","resource":"ignition/x/y","config":{}}`,
		"/tokens":      `{"name":"a:b"}`,
	} {
		t.Run(path, func(t *testing.T) {
			status, _ := b.admin("POST", path, body)
			assert.Equal(t, 400, status, path)
		})
	}
	for _, f := range []string{`{"route":"GET /x"}`, `{"route":"x","status":500}`, `{"route":"GET /x","status":99}`, `{"route":"GET /x","delay":"-1s"}`} {
		t.Run(f, func(t *testing.T) {
			status, _ := b.admin("POST", "/faults", f)
			assert.Equal(t, 400, status, f)
		})
	}
	status, body := b.admin("GET", "/nothing", "")
	assert.Equal(t, 404, status)
	assert.Contains(t, body, "POST /faults")
}

func TestAdminSimulatesUsers(t *testing.T) {
	b := withProject(t, simulator.Options{})
	id, _ := b.adminOK("POST", "/designers", `{"user":"ann","project":"P"}`)["id"].(string)
	_, body := b.ask("GET", "/data/api/v1/designers", "")
	assert.Contains(t, body, `"user":"ann"`)
	status, _ := b.ask("GET", "/data/api/v1/designer/"+id, "")
	assert.Equal(t, 200, status)
	b.adminOK("POST", "/designers/"+id+"/open", `{"resource":"`+view+`"}`)
	b.adminOK("POST", "/designers/"+id+"/save", `{"resource":"`+view+`","files":{"view.json":"{}"}}`)
	assert.Equal(t, "{}", b.read(viewDir+"/view.json"))
	assert.Contains(t, b.adminOK("GET", "/loaded/"+viewDir, ""), "view.json")
	b.adminOK("DELETE", "/designers/"+id, "")
	status, _ = b.ask("DELETE", "/data/api/v1/designer/"+id, "")
	assert.Equal(t, 404, status)

	b.adminOK("POST", "/config", `{"collection":"core","resource":"ignition/schedule/x","actor":"ann","config":{"a":"<"}}`)
	assert.Equal(t, "{\n  \"a\": \"\\u003c\"\n}", b.read("config/resources/core/ignition/schedule/x/config.json"))
	token, _ := b.adminOK("POST", "/tokens", `{"name":"ci","levels":["Authenticated/ApiKeys/CI"]}`)["token"].(string)
	b.adminOK("POST", "/grants", `{"levels":["Authenticated/ApiKeys/CI"]}`)
	status, _ = b.send("GET", b.URL()+"/data/api/v1/trial", "", "X-Ignition-API-Token", token)
	assert.Equal(t, 200, status)
	b.adminOK("POST", "/log", `{"logger":"Tags","message":"overload"}`)
	_, body = b.send("GET", b.URL()+"/data/api/v1/logs?logger=Tags&minLevel=ERROR&limit=5", "", "X-Ignition-API-Token", token)
	assert.Contains(t, body, "overload")
}

func TestAdminHoldsLocksAndScans(t *testing.T) {
	b := start(t, simulator.Options{})
	b.adminOK("POST", "/locks", `{"kind":"projects","actor":"job","for":"1h"}`)
	status, _ := b.ask("POST", lockPath, "{}")
	assert.Equal(t, 409, status)
	b.adminOK("DELETE", "/locks/projects", "")
	b.adminOK("POST", "/scan-faults", `{"kind":"projects","fails":1,"delay":"1ms"}`)
	before := b.Scans.Completed("projects")
	b.adminOK("POST", "/scan/projects", "")
	assert.Equal(t, before+1, b.Scans.Completed("projects"), "the fault must apply to REST scans only")
	b.adminOK("POST", "/restart", `{"for":"1ms"}`)
	require.Eventually(t, func() bool { return b.state() == "RUNNING" }, bound, time.Millisecond)
	b.adminOK("GET", "/canaries", "")
	b.adminOK("POST", "/canaries", "")
	b.adminOK("GET", "/load-errors", "")
}

func TestRequestLogCountsAndForgets(t *testing.T) {
	b := start(t, simulator.Options{})
	b.ask("GET", "/data/api/v1/trial?x=1", "")
	b.ask("GET", "/data/api/v1/trial", "")
	assert.Equal(t, 2, b.Requests.Count("GET /data/api/v1/trial"))
	require.Eventually(t, func() bool { return b.Requests.List()[0].Status != 0 }, bound, time.Millisecond)
	first := b.Requests.List()[0]
	assert.Equal(t, "x=1", first.Query)
	assert.Equal(t, "stoker", first.Token)
	assert.Equal(t, 200, first.Status)
	counts, _ := b.adminOK("GET", "/requests", "")["counts"].(map[string]any)
	assert.InDelta(t, 2, counts["GET /data/api/v1/trial"], 0)
	b.adminOK("DELETE", "/requests", "")
	assert.Zero(t, b.Requests.Count("GET /data/api/v1/trial"))
}

func TestRestartTaskNeedsConfirmation(t *testing.T) {
	b := start(t, simulator.Options{})
	status, _ := b.ask("POST", "/data/api/v1/restart-tasks/restart", "")
	assert.Equal(t, 400, status)
	require.NoError(t, b.Scans.Run("config"))
	require.Equal(t, 2, b.Scans.Completed("config"))
	status, _ = b.ask("POST", "/data/api/v1/restart-tasks/restart?confirm=true", "")
	assert.Equal(t, 200, status)
	require.Eventually(t, func() bool { return b.state() == "RUNNING" && b.Scans.Completed("config") == 1 }, bound, time.Millisecond)
}

func TestBackupMayRefuseScans(t *testing.T) {
	for name, want := range map[string]int{"refuses": 403, "scans": 200} {
		t.Run(name, func(t *testing.T) {
			b := start(t, simulator.Options{Role: "Backup", Unknowns: simulator.Unknowns{NoScanOnBackup: want == 403}})
			status, _ := b.ask("POST", scanPath, "")
			assert.Equal(t, want, status)
			_, body := b.ask("GET", "/data/api/v1/redundancy", "")
			assert.Contains(t, body, `"hasConfigAccess":false`)
			assert.Contains(t, b.read("redundancy.xml"), ">Backup<")
		})
	}
}
