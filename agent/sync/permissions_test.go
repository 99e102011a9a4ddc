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
		gitserver.Write(permissions+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))
}

// The first boot rewrites the permissions and drops what the commit granted. The agent restores the files once and then waits until
// the gateway reads them, at its next start or at a manual scan.
func TestRefusalAfterFirstBootIsRetried(t *testing.T) {
	b := newBench(t, simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true})
	b.push(withPermissions()...)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	require.NotEqual(t, granted, b.read(permissions+"/config.json"), "the first boot rewrote them")

	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	assert.Contains(t, r.Message, "first boot")
	assert.Equal(t, granted, b.read(permissions+"/config.json"))
	r = b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	assert.Empty(t, r.Notes, "the agent restores the permissions once")

	require.NoError(t, b.gw.Restart(0))
	b.synced()
}

// The permissions are restored even if the first commit has nothing that can be verified, or only what cannot be.
func TestRefusalAfterFirstBootWithoutProjects(t *testing.T) {
	for name, collection := range map[string]string{"singletons": "", "resources of another deployment mode": "staging"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true})
			edits := withPermissions()[len(firstCommit()):]
			if collection != "" {
				at := "config/resources/" + collection + "/ignition/database-connection/db"
				edits = append(edits, gitserver.Write(at+"/config.json", "{}"),
					gitserver.Write(at+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))
			}
			b.push(edits...)
			b.target.BeforeStart = true
			b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
			b.target.BeforeStart = false
			require.NoError(t, b.gw.SetState(simulator.Running))
			require.NotEqual(t, granted, b.read(permissions+"/config.json"), "the first boot rewrote them")
			b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
			assert.Equal(t, granted, b.read(permissions+"/config.json"))
			require.NoError(t, b.gw.Restart(0))
			b.synced()
		})
	}
}

// What the agent restores after the first boot is a sync, which keeps earlier snapshots.
func TestSnapshotOfRestoredPermissions(t *testing.T) {
	b := newBench(t, simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true})
	b.target.Facts.GatewayName = "area-4"
	b.target.Profile.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 5, MaxSize: "1Gi"}
	b.push(withPermissions()...)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.push(gitserver.Write(view, `{"one": 2}`))
	before := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway).Snapshots
	require.Len(t, before, 1)
	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	assert.Equal(t, granted, b.read(permissions+"/config.json"))
	require.Len(t, r.Snapshots, 2)
	assert.Equal(t, before[0].ID, r.Snapshots[0].ID)
}

// A start with files from git that is not the first one changes no permissions.
func TestRefusalAfterLaterStart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(withPermissions()...)
	b.synced()
	require.NoError(t, b.gw.Administrator.Grant())
	taken := b.read(permissions + "/config.json")
	require.NotEqual(t, granted, taken)
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.push(gitserver.Write(view, `{"two": 2}`))
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	assert.Equal(t, taken, b.read(permissions+"/config.json"))
}

func TestRefusalAfterFirstBootIsBounded(t *testing.T) {
	b := newBench(t, simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true})
	b.push(firstCommit()...)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	b.engine.Now = func() time.Time { return time.Now().Add(6 * time.Minute) }
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	assert.Contains(t, r.Message, "gateway permission")
	require.NoError(t, b.gw.Administrator.Grant("Authenticated/ApiKeys/Stoker"))
	b.synced()
}

// If the clock was years ahead at the first boot and is correct now, the wait is still limited.
func TestRefusalTimeInFuture(t *testing.T) {
	b := newBench(t, simulator.Options{Down: true, Seeding: simulator.SeedChart, ResetPermissions: true})
	b.push(firstCommit()...)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.engine.Now = func() time.Time { return time.Now().Add(5 * 365 * 24 * time.Hour) }
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	b.engine.Now = time.Now
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	b.engine.Now = func() time.Time { return time.Now().Add(6 * time.Minute) }
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
}

// For a gateway that ran all the time, a rejected request is an error at once.
func TestRefusalOfRunningGateway(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(withPermissions()...)
	b.synced()
	require.NoError(t, b.gw.Administrator.Grant())
	taken := b.read(permissions + "/config.json")
	b.push(gitserver.Write(view, `{"two": 2}`))
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	assert.Equal(t, taken, b.read(permissions+"/config.json"))
}

func TestTokenInCommitNeedsRestart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	const token = "config/resources/core/ignition/api-token/ci"
	b.push(append(firstCommit(), gitserver.Write(token+"/config.json", `{"profile":{},"settings":{}}`),
		gitserver.Write(token+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))...)
	require.NoError(t, b.gw.Faults.Add(simulator.Fault{Route: "* /data/api/v1/*", Status: 401}))
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden)
	found := false
	for _, n := range r.Notes {
		found = found || assert.ObjectsAreEqual(n, "the commit has an API key, which a running gateway accepts only after a restart, or after a scan from its web page (Platform > System > Modes)")
	}
	assert.True(t, found, "%q", r.Notes)
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
		require.NoError(t, b.gw.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/config", Status: http.StatusForbidden}))
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
