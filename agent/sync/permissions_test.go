package sync_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const permissions = "config/resources/core/ignition/security-properties"

// granted is a permissions file that admits the simulator's token.
const granted = `{"accessPermissions":{"securityLevels":[],"type":"AnyOf"},
"readPermissions":{"securityLevels":[{"name":"Authenticated","children":[{"name":"ApiKeys","children":[{"name":"Stoker","children":[]}]}]}],"type":"AnyOf"},
"writePermissions":{"securityLevels":[{"name":"Authenticated","children":[{"name":"ApiKeys","children":[{"name":"Stoker","children":[]}]}]}],"type":"AnyOf"}}`

func withPermissions() []gitserver.Edit {
	return append(firstCommit(), gitserver.Write(permissions+"/config.json", granted),
		gitserver.Write(permissions+"/resource.json", listing("config.json")))
}

// seeding is a gateway that has never started, and whose first boot rewrites its permissions.
var seeding = simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true}

// The first boot rewrites the permissions and drops what the commit granted. The agent restores the files once, even if the commit has
// nothing else, or only resources of another deployment mode, which the gateway does not list. It then waits until the gateway reads the
// permissions, at its next start or at a manual scan.
func TestRefusalAfterFirstBootIsRetried(t *testing.T) {
	const otherMode = "config/resources/staging/ignition/database-connection/db"
	for name, edits := range map[string][]gitserver.Edit{
		"projects":     firstCommit(),
		"nothing else": nil,
		"resources of another deployment mode": {
			gitserver.Write(otherMode+"/config.json", "{}"), gitserver.Write(otherMode+"/resource.json", listing("config.json")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, seeding)
			b.push(append(edits, withPermissions()[len(firstCommit()):]...)...)
			b.beforeStart()
			require.NotEqual(t, granted, b.read(permissions+"/config.json"), "the first boot rewrote them")

			r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
			assert.Contains(t, r.Message, "first boot")
			assert.Equal(t, granted, b.read(permissions+"/config.json"))
			r = b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
			assert.Empty(t, r.Notes, "the agent restores the permissions once")

			require.NoError(t, b.gw.Restart(0))
			b.synced()
		})
	}
}

// Restoring the permissions after the first boot takes a snapshot, and keeps earlier ones.
func TestSnapshotOfRestoredPermissions(t *testing.T) {
	b := newSnapshotBench(t, seeding)
	b.push(withPermissions()...)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.push(gitserver.Write(view, `{"one": 2}`))
	before := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway).Snapshots
	require.Len(t, before, 1)
	b.target.BeforeStart = false
	b.set(simulator.Running)
	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	assert.Equal(t, granted, b.read(permissions+"/config.json"))
	require.Len(t, r.Snapshots, 2)
	assert.Equal(t, before[0].ID, r.Snapshots[0].ID)
}

// For a gateway that ran all the time, or one whose start is not the first one with files from git, a rejected request is an error at once.
func TestRefusalOfLaterSync(t *testing.T) {
	for name, stopped := range map[string]bool{"running": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			b.push(withPermissions()...)
			b.synced()
			require.NoError(t, b.gw.Administrator.Grant())
			taken := b.read(permissions + "/config.json")
			require.NotEqual(t, granted, taken)
			b.push(gitserver.Write(view, `{"two": 2}`))
			if stopped {
				b.set(simulator.Down)
				b.beforeStart()
			}
			b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
			assert.Equal(t, taken, b.read(permissions+"/config.json"))
		})
	}
}

// The wait after the first boot is limited, even if the clock was years ahead then.
func TestRefusalAfterFirstBootIsBounded(t *testing.T) {
	b := newBench(t, seeding)
	b.push(firstCommit()...)
	b.beforeStart()
	for _, ahead := range []time.Duration{5 * 365 * 24 * time.Hour, 0} { // sequence: the clock is corrected
		b.engine.Now = func() time.Time { return time.Now().Add(ahead) }
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	}
	b.engine.Now = func() time.Time { return time.Now().Add(6 * time.Minute) }
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	assert.Contains(t, r.Message, "gateway permission")
	require.NoError(t, b.gw.Administrator.Grant("Authenticated/ApiKeys/Stoker"))
	b.synced()
}

// withToken is a commit with an API key.
func withToken() []gitserver.Edit {
	const token = "config/resources/core/ignition/api-token/ci"
	return append(firstCommit(), gitserver.Write(token+"/config.json", `{"profile":{},"settings":{}}`), gitserver.Write(token+"/resource.json", listing("config.json")))
}

func TestTokenInCommitNeedsRestart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(withToken()...)
	b.fault(simulator.Fault{Route: "* /data/api/v1/*", Status: 401})
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	assert.Contains(t, r.Notes, "the commit has an API key, which a running gateway accepts only after a restart, or after a scan from its web page (Platform > System > Modes)")
	b.gw.Faults.Clear()
	b.synced()
}

// It is unknown whether an expired trial stops scans. The agent reports the expired trial either way.
func TestExpiredTrialIsReported(t *testing.T) {
	t.Run("gateway that has loaded the files", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.push(firstCommit()...)
		assert.Empty(t, b.synced().Notes)
		b.push(gitserver.Write(view, `{"two": 2}`))
		b.gw.Trial.SetExpired(true)
		r := b.sync()
		assert.Contains(t, strings.Join(append(r.Notes, r.Message), "\n"), "trial has expired")
	})
	t.Run("gateway that refuses scans", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.push(firstCommit()...)
		b.gw.Trial.SetExpired(true)
		b.fault(simulator.Fault{Route: scanConfig, Status: http.StatusForbidden})
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
		assert.Contains(t, r.Message, "the files of "+b.target.Commit.Short()+" are on the disk")
		assert.Contains(t, r.Message, "trial has expired")
		b.gw.Trial.SetExpired(false)
		r = b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
		assert.NotContains(t, r.Message, "trial")
		b.gw.Faults.Clear()
		b.synced()
	})
}

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
			assert.Zero(t, b.gw.Requests.Count(scanProjects)+b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"))
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
		module, open    bool // the module is installed; a Designer is open
		fault           *simulator.Fault
		posts, notified int // requests to the module; open Designers that it notified
		note            string
	}{
		"no Designer":                  {module: true},
		"open Designer":                {module: true, open: true, posts: 1, notified: 1, note: "the project-scan module notified the open Designers"},
		"no module":                    {open: true},
		"the module fails":             {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 500}, note: "the project-scan module did not notify the open Designers: "},
		"the module's scan fails":      {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 200, Body: `{"gatewayProjectScanSuccess":false}`}, note: "the project-scan module did not notify"},
		"the module answers with HTML": {module: true, open: true, posts: 1, fault: &simulator.Fault{Route: post, Status: 200, Body: `<html>`}, note: "the project-scan module did not notify"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{ScanModule: c.module}).delivered()
			if c.open {
				b.designer("maria", "line")
			}
			if c.fault != nil {
				b.fault(*c.fault)
			}
			b.gw.Requests.Reset()
			b.push(gitserver.Write(viewDir+"/view.json", `{"root": {"changed": true}}`))
			r := b.synced()
			assert.Equal(t, c.posts, b.gw.Requests.Count(post))
			assert.Equal(t, c.notified, b.gw.Designers.Notifications())
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
	b.push(append(firstCommit(), gitserver.Write(systemProperties+"/config.json", `{"systemName": "x"}`), gitserver.Write(systemProperties+"/resource.json", listing("config.json")))...)
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
