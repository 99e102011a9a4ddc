package sync_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

func TestScanByModule(t *testing.T) {
	for name, token := range map[string]bool{"with token": true, "without token": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{Version: "8.1.44", ScanModule: true})
			b.conn.HasAPIToken = token
			b.designer("maria", "line")
			b.push(firstCommit()...)
			r := b.synced()
			assert.Contains(t, r.Message, "project-scan module")
			assert.Contains(t, r.Message, "nothing is verified")
			assert.Equal(t, 1, b.gw.Requests.Count("POST /data/project-scan-endpoint/scan"))
			assert.Zero(t, b.gw.Requests.Count("POST /data/api/v1/scan/projects")+b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"))
			assert.NotNil(t, b.gw.Data.Loaded(viewDir))
			assert.Equal(t, 1, b.gw.Designers.Notifications())
			require.Len(t, r.Notes, 1, "%q", r.Notes)
			assert.Contains(t, r.Notes[0], "database", "the gateway does not read files of config")

			b.gw.Requests.Reset()
			b.synced()
			assert.Zero(t, b.gw.Requests.Count("POST /data/project-scan-endpoint/scan"))
		})
	}
}

func TestOldGatewayWithoutModule(t *testing.T) {
	b := newBench(t, simulator.Options{Version: "8.1.44"})
	b.push(firstCommit()...)
	r := b.synced()
	assert.Contains(t, r.Message, "files only")
	assert.Contains(t, r.Message, "8.1.44")
	assert.Nil(t, b.gw.Data.Loaded(viewDir))
	require.NoError(t, b.gw.Advance(301*time.Second))
	assert.NotNil(t, b.gw.Data.Loaded(viewDir), "the gateway's timer reads the files")
}

func TestScanByModuleIsRetried(t *testing.T) {
	b := newBench(t, simulator.Options{Version: "8.1.44", ScanModule: true})
	require.NoError(t, b.gw.Faults.Add(simulator.Fault{Route: "POST /data/project-scan-endpoint/scan", Status: 200, Times: 1,
		Body: `{"gatewayProjectScanSuccess":false,"sentDesignerUpdateNotification":false}`}))
	b.push(firstCommit()...)
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	b.synced()
	assert.NotNil(t, b.gw.Data.Loaded(viewDir))
}

// On 8.3, the agent uses the gateway's own scan, which it can verify, and the module only to notify open Designers.
func TestScanModuleOn83(t *testing.T) {
	const post = "POST /data/project-scan-endpoint/scan"
	for name, c := range map[string]struct {
		module, open bool
		fault        *simulator.Fault
		posts, told  int
		note         string
	}{
		"no Designer":       {module: true},
		"open Designer":     {module: true, open: true, posts: 1, told: 1, note: "the project-scan module notified the open Designers"},
		"no module":         {open: true},
		"the module fails":  {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 500}, note: "the project-scan module did not notify the open Designers: "},
		"the scan fails":    {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 200, Body: `{"gatewayProjectScanSuccess":false}`}, note: "the project-scan module did not notify"},
		"the module is odd": {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 200, Body: `<html>`}, note: "the project-scan module did not notify"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{ScanModule: c.module})
			b.push(firstCommit()...)
			b.synced()
			if c.open {
				b.designer("maria", "line")
			}
			if c.fault != nil {
				require.NoError(t, b.gw.Faults.Add(*c.fault))
			}
			b.gw.Requests.Reset()
			b.push(gitserver.Write(viewDir+"/view.json", `{"root": {"changed": true}}`))
			r := b.synced()
			assert.Equal(t, c.posts, b.gw.Requests.Count(post))
			assert.Equal(t, c.told, b.gw.Designers.Notifications())
			if c.note == "" {
				assert.NotContains(t, strings.Join(r.Notes, "\n"), "project-scan")
			} else {
				assert.Contains(t, strings.Join(r.Notes, "\n"), c.note)
			}
			b.gw.Requests.Reset()
			b.synced()
			assert.Zero(t, b.gw.Requests.Count(post), "an idle sync sends no notification")
		})
	}
}

func TestOldGatewayDesignerPolicy(t *testing.T) {
	b := newBench(t, simulator.Options{Version: "8.1.44", ScanModule: true})
	b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
	b.push(firstCommit()...)
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonProfilesInvalid)
	assert.Contains(t, r.Message, "8.1.44")
	assert.Empty(t, b.read(view))
}

func TestGatewayNotes(t *testing.T) {
	b := newBench(t, simulator.Options{Mode: "dev", Name: "plant-2", FixedName: true})
	b.target.Profile.DeploymentMode, b.target.Profile.SystemName = "prod", "plant-1"
	b.gw.Restarts.SetPending("module Vision was installed")
	b.push(append(firstCommit(), gitserver.Write(systemProperties+"/config.json", `{"systemName": "x"}`),
		gitserver.Write(systemProperties+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))...)
	r := b.synced()
	require.Len(t, r.Notes, 3, "%q", r.Notes)
	assert.Contains(t, r.Notes[0], `"prod"`)
	assert.Contains(t, r.Notes[1], `"plant-2"`)
	assert.Contains(t, r.Notes[2], "module Vision was installed")

	b.target.Profile.DeploymentMode, b.target.Profile.SystemName = "dev", "plant-2"
	b.gw.Restarts.SetPending()
	b.push(gitserver.Write(view, `{"two": 2}`))
	assert.Empty(t, b.synced().Notes)
}
