package sync_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// newGated (evidence_test.go) returns a gateway at noon that runs a first commit. The second one is the target, and only the night allows it.
func TestMaintenanceWindows(t *testing.T) {
	t.Run("a commit waits for its window", func(t *testing.T) {
		b := newGated(t)
		b.gw.Requests.Reset()
		worked := false
		b.target.OnWorking = func() { worked = true }
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Contains(t, r.Message, "syncs are allowed at 2026-11-24T22:00:00Z (maintenance window nights); to deliver it now: stoker approve plant --window")
		assert.Equal(t, time.Date(2026, 11, 24, 22, 0, 0, 0, time.UTC), r.RetryAt.UTC())
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Empty(t, b.gw.Requests.List())
		assert.Empty(t, r.Fetch.Kind, "no fetch")
		assert.False(t, worked)

		b.target.BeforeStart = true
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Empty(t, b.gw.Requests.List())
	})
	t.Run("a delivered commit is repaired and taken back at any time", func(t *testing.T) {
		b := newGated(t)
		b.now = atNight
		r := b.synced()
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.now = noon.Add(24 * time.Hour)
		b.synced()
		b.put(view, `{"one": "edited"}`)
		b.target.Repair = true
		b.synced()
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.target.Repair, b.target.Profile.ExcludePatterns = false, []string{"**/view.json"}
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow) // other settings wait
		b.target.Profile.ExcludePatterns, b.target.Restore = nil, r.Snapshots[0].ID
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("a commit delivered in the window is scanned later", func(t *testing.T) {
		b := newGated(t)
		b.now = atNight
		b.fault(simulator.Fault{Route: scanProjects, Status: 400})
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		b.now = noon.Add(24 * time.Hour)
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.target.BeforeStart = true
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.target.BeforeStart = false
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		assert.Contains(t, r.Message, "before "+b.target.Commit.Short())
		b.gw.Faults.Clear()
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.gw.Requests.Reset()
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Empty(t, b.gw.Requests.List(), "the scan happens once")
	})
	t.Run("a window of another gateway", func(t *testing.T) {
		b := newGated(t)
		b.target.Facts.GatewayName = "line-1"
		b.synced()
	})
	for name, change := range map[string]func(*sync.Task){
		"a forced sync":        func(t *sync.Task) { t.Force = "now" },
		"a requested rollback": func(t *sync.Task) { t.RequestedRollback = true },
		"an approved commit":   func(t *sync.Task) { t.WindowApproved = true },
	} {
		t.Run(name+" does not wait", func(t *testing.T) {
			b := newGated(t)
			change(&b.target)
			b.synced()
			assert.Equal(t, `{"one": 2}`, b.read(view))
		})
	}
	t.Run("a repair of a new commit waits", func(t *testing.T) {
		b := newGated(t)
		b.put(view, `{"one": "edited"}`)
		b.target.Repair = true
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Equal(t, `{"one": "edited"}`, b.read(view))
	})
	t.Run("a dry run shows the plan", func(t *testing.T) {
		b := newGated(t)
		b.target.Profile.DryRun = true
		assert.Equal(t, v1alpha1.ReasonDryRun, b.sync().Reason)
	})
	// The target counts as delivered before: no record of an earlier commit contradicts it.
	t.Run("an incomplete volume gets the target before the gateway starts", func(t *testing.T) {
		b := newGated(t)
		d, err := b.engine.Open()
		require.NoError(t, err)
		staged, err := d.Stage(t.Context(), &plan.Changes{}, nil, nil)
		require.NoError(t, err)
		h := d.Manifest().Header()
		h.Complete = false // as after an interrupted sync whose journal is lost
		_, err = staged.Apply(t.Context(), h)
		require.NoError(t, err)
		b.remove(view)
		b.target.BeforeStart = true
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Equal(t, `{"one": 2}`, b.read(view))
	})
	t.Run("invalid windows", func(t *testing.T) {
		b := newGated(t)
		b.target.Profile.Windows[0].TimeZone = "Local"
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonProfilesInvalid)
		assert.Contains(t, r.Message, "spec.deployment.windows[0].timeZone")
	})
}

const pingRoute = "GET /StatusPing"

func TestVolumeAlreadyAtTarget(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Start = "one"
	b.delivered()
	b.gw.Requests.Reset()
	b.synced()
	b.again()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "a restarted agent sends no request to a gateway that ran")

	b.set(simulator.Down)
	b.synced()             // the gateway ran since this start; if it stops later, its own probes say so
	b.target.Start = "two" // the pod was restarted
	for range 2 {
		r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Equal(t, b.target.Commit, r.Commit)
		assert.Contains(t, r.Message, "has not run since its pod started")
		b.again() // the next agent of this pod waits, too
	}
	b.set(simulator.Starting)
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.set(simulator.Commissioning)
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	b.set(simulator.Running)
	// sequence: the answers of a web server that is starting
	for _, f := range []simulator.Fault{{Status: 500}, {Status: 404}, {Reset: true}} {
		f.Route, f.Times = pingRoute, 1
		b.fault(f)
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	}
	b.gw.Requests.Reset()
	r := b.synced()
	assert.Empty(t, r.Scans, "the gateway read the files when it started")
	assert.Equal(t, 1, b.gw.Requests.Count(pingRoute))
	assert.Len(t, b.gw.Requests.List(), 1)
	b.synced()
	b.again()
	b.synced()
	assert.Len(t, b.gw.Requests.List(), 1)
}

func TestSyncedByFilesWithoutGateway(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	b.set(simulator.Down)
	b.target.Start = "two" // the pod was restarted
	b.conn.HasAPIToken = false
	b.synced()
	b.conn.Gateway = nil
	b.synced()
}

// If a pod restarts and its volume has the target, the gateway has loaded the files as soon as it runs.
func TestRestartAtTarget(t *testing.T) {
	for name, tt := range map[string]struct {
		options     simulator.Options
		beforeStart bool
	}{
		"8.1":                              {options: simulator.Options{Version: "8.1.44", ScanModule: true}},
		"a sync before the gateway starts": {beforeStart: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.options).delivered()
			b.set(simulator.Down)
			b.target.Start, b.target.BeforeStart = "two", tt.beforeStart
			b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
			b.target.BeforeStart = false
			b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
			b.set(simulator.Running)
			b.gw.Requests.Reset()
			b.synced()
			assert.Len(t, b.gw.Requests.List(), 1)
		})
	}
}

func TestRestartOfStandby(t *testing.T) {
	p := newPair(t, simulator.Options{}).delivered()
	p.backup.set(simulator.Down)
	p.backup.target.Start = "two"
	p.backup.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	p.backup.set(simulator.Running)
	p.backup.standby()
}
