package sync_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const (
	projectJSON = "projects/line/project.json"
	refused     = "refused by the gateway" // a text in files, because of which the faults of triggers apply
	schedule    = "config/resources/core/ignition/schedule/night"
	nightJSON   = `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`
)

// rollbackBench is a bench with automatic rollback. Its clock stands still until a test calls pass.
type rollbackBench struct {
	*bench
	now  *time.Time
	good plan.ID // the first commit of the gateway
}

func newRollbackBench(t *testing.T, o simulator.Options) *rollbackBench {
	t.Helper()
	j := &rollbackBench{bench: newSnapshotBench(t, o)}
	j.now = j.clock()
	j.target.Profile.AutoRollback = []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerScanFailure, v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError}
	j.good = j.push(firstCommit()...)
	j.synced()
	return j
}

// pass lets time pass.
func (j *rollbackBench) pass(d time.Duration) { *j.now = j.now.Add(d) }

// refusing returns a bench whose target is a commit that the gateway does not load because of the fault of a trigger.
func refusing(t *testing.T, trigger string) *rollbackBench {
	t.Helper()
	j := newRollbackBench(t, simulator.Options{})
	j.faults(triggers[trigger].fault)
	j.push(bad()...)
	return j
}

// rolledBack returns a bench that was rolled back automatically, because scans fail.
func rolledBack(t *testing.T) *rollbackBench {
	t.Helper()
	j := refusing(t, "scans of projects fail")
	j.fails(v1alpha1.ReasonScanFailed, 30*time.Second)
	j.back(v1alpha1.TriggerScanFailure)
	return j
}

func (j *rollbackBench) faults(list ...simulator.LoadFault) {
	j.t.Helper()
	require.NoError(j.t, j.gw.LoadFaults.Set(list...))
}

// fails syncs for a duration, every ten seconds, and expects each of the syncs to fail with a reason, and without a rollback.
func (j *rollbackBench) fails(reason v1alpha1.Reason, d time.Duration) {
	j.t.Helper()
	for end := j.now.Add(d); j.now.Before(end); j.pass(10 * time.Second) { // sequence: time passes
		r := j.ended(v1alpha1.GatewayError, reason)
		require.Nil(j.t, r.AutoRollback)
		require.NotEqual(j.t, j.good, r.Commit)
	}
}

// back syncs, and expects that the gateway is rolled back to its first commit, and that the target is blocked.
func (j *rollbackBench) back(trigger v1alpha1.AutoRollbackTrigger) *sync.Report {
	j.t.Helper()
	r := j.ended(v1alpha1.GatewayError, v1alpha1.ReasonRolledBack)
	require.NotNil(j.t, r.AutoRollback)
	require.Equal(j.t, trigger, r.AutoRollback.Trigger)
	require.Equal(j.t, j.target.Commit, r.AutoRollback.Commit)
	require.Equal(j.t, j.good, r.Commit)
	require.Equal(j.t, `{"one": 1}`, j.read(view))
	require.NoError(j.t, j.gw.Canaries.Check())
	return r
}

// bad is a commit with the text refused, which the gateway does not load while it has a fault of triggers.
func bad() []gitserver.Edit {
	return []gitserver.Edit{
		gitserver.Write(view, `{"one": "`+refused+`"}`), gitserver.Write(db+"/config.json", `{"url": "`+refused+`"}`),
		gitserver.Write(schedule+"/config.json", "{}"),
		gitserver.Write(schedule+"/resource.json", nightJSON),
	}
}

var triggers = map[string]struct {
	edits   []gitserver.Edit
	fault   simulator.LoadFault
	reason  v1alpha1.Reason
	trigger v1alpha1.AutoRollbackTrigger
}{
	"scans of projects fail":    {bad(), simulator.LoadFault{Path: "projects/line", While: refused, Scan: true}, v1alpha1.ReasonScanFailed, v1alpha1.TriggerScanFailure},
	"scans of config fail":      {bad(), simulator.LoadFault{Path: db, While: refused, Scan: true}, v1alpha1.ReasonScanFailed, v1alpha1.TriggerScanFailure},
	"the project is missing":    {bad(), simulator.LoadFault{Path: "projects/line", While: refused, Hide: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerProjectLoadError},
	"the resource is missing":   {bad(), simulator.LoadFault{Path: db, While: refused, Hide: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerConfigError},
	"a new resource is missing": {bad(), simulator.LoadFault{Path: schedule, Hide: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerConfigError},
	"a deleted project stays":   {[]gitserver.Edit{gitserver.Delete("projects/line")}, simulator.LoadFault{Path: "projects/line", Keep: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerProjectLoadError},
	"a project without parent":  {[]gitserver.Edit{gitserver.Write(projectJSON, `{"title":"Line","parent":"gone","enabled":true}`)}, simulator.LoadFault{Path: "projects/none", Hide: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerProjectLoadError},
	"a new project is missing":  {[]gitserver.Edit{gitserver.Write("projects/new/project.json", `{"title":"New","parent":"","enabled":true}`)}, simulator.LoadFault{Path: "projects/new", Hide: true}, v1alpha1.ReasonVerificationFailed, v1alpha1.TriggerProjectLoadError},
}

func TestAutomaticRollback(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	for name, tt := range triggers {
		t.Run(name, func(t *testing.T) {
			j := newRollbackBench(t, simulator.Options{})
			j.faults(tt.fault)
			commit := j.push(tt.edits...)
			j.target.ConfirmDeletion = commit.String()
			j.fails(tt.reason, 30*time.Second)
			r := j.back(tt.trigger)
			assert.True(t, r.Wrote())
			assert.Contains(t, r.Message, string(tt.trigger))
			assert.NotNil(t, j.gw.Data.Loaded(viewDir))
			assert.NotNil(t, j.gw.Data.Loaded(db))
			records := j.audited()
			audit := records[len(records)-1]
			assert.Equal(t, tt.trigger, audit.AutoRollback.Trigger)
			assert.Equal(t, commit, audit.From)
			assert.Equal(t, j.good, audit.To)

			j.gw.Requests.Reset()
			j.pass(time.Hour)
			assert.False(t, j.back(tt.trigger).Wrote())
			assert.Empty(t, j.gw.Requests.List(), "the commit is blocked without requests to the gateway")
			j.restart(t.TempDir())
			assert.False(t, j.back(tt.trigger).Wrote(), "a restarted agent does not sync the commit again")
			j.target.BeforeStart = true
			assert.Equal(t, j.good, j.sync().Commit, "a new pod does not sync the commit again")
			j.target.BeforeStart = false
			j.push(append(tt.edits, gitserver.Write(projectJSON, `{"title":"Fixed","parent":"","enabled":true}`), gitserver.Write(view, `{"one": 2}`),
				gitserver.Write(db+"/config.json", `{}`))...)
			j.faults()
			j.target.ConfirmDeletion = j.target.Commit.String()
			j.synced()
		})
	}
	t.Run("scans that hang", func(t *testing.T) {
		j := refusing(t, "scans of projects fail")
		j.at("scan", func() { j.pass(2 * time.Minute) })
		j.fails(v1alpha1.ReasonScanFailed, 4*time.Minute)
		j.back(v1alpha1.TriggerScanFailure)
	})
}

func TestAutomaticRollbackIgnores(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	every := 10 * time.Second
	if testing.Short() {
		every = 30 * time.Second
	}
	// lasts lets time pass, and expects that the gateway keeps the commit.
	lasts := func(j *rollbackBench) {
		for passed := time.Duration(0); passed < 200*time.Second; passed += every { // sequence: time passes
			j.pass(every)
			require.Nil(j.t, j.sync().AutoRollback)
		}
		require.Equal(j.t, j.target.Commit, j.sync().Commit)
	}
	t.Run("a stopped gateway", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.set(simulator.Down)
		j.push(bad()...)
		lasts(j)
	})
	t.Run("a gateway that starts", func(t *testing.T) {
		j := refusing(t, "the project is missing")
		j.fails(v1alpha1.ReasonVerificationFailed, 20*time.Second)
		j.set(simulator.Starting)
		lasts(j)
		j.set(simulator.Running)
		j.fails(v1alpha1.ReasonVerificationFailed, 30*time.Second) // the grace period starts again
		j.back(v1alpha1.TriggerProjectLoadError)
	})
	for name, fault := range map[string]simulator.Fault{
		"a broken connection": {Route: "GET /data/api/v1/projects/*", Reset: true},
		"401":                 {Route: "* /data/*", Status: http.StatusUnauthorized},
		"403":                 {Route: "POST /data/*", Status: http.StatusForbidden},
		"a foreign scan lock": {Route: "POST /data/api/v1/scan/*", Status: http.StatusConflict},
		"a refused scan lock": {Route: "POST /data/api/v1/scan-lock/*", Status: http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			j := newRollbackBench(t, simulator.Options{})
			j.fault(fault)
			j.push(bad()...)
			lasts(j)
		})
	}
	t.Run("an earlier failure", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.target.Profile.AutoRollback = nil
		j.push(gitserver.Write("projects/orphan/project.json", `{"title":"Orphan","parent":"gone","enabled":true}`))
		j.ended(v1alpha1.GatewayError, v1alpha1.ReasonVerificationFailed)
		j.target.Profile.AutoRollback = []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError}
		j.faults(simulator.LoadFault{Path: db, Hide: true})
		require.NoError(t, j.gw.Scans.Run("config"))
		j.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write(db+"/config.json", `{"url": 2}`))
		lasts(j)
		assert.Equal(t, `{"one": 2}`, j.read(view))
		j.push(gitserver.Write(projectJSON, `{"title":"Line","parent":"gone","enabled":true}`))
		j.pass(time.Second)
		j.sync()
		j.pass(time.Minute)
		assert.Equal(t, v1alpha1.TriggerProjectLoadError, j.sync().AutoRollback.Trigger, "a newly broken project counts")
	})
	t.Run("a disabled project", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.faults(simulator.LoadFault{Path: "projects/line", Hide: true})
		j.push(gitserver.Write(projectJSON, `{"title":"Line","parent":"gone","enabled":false}`))
		lasts(j)
	})
	t.Run("types without a list of names", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.fault(simulator.Fault{Route: "GET /data/api/v1/resources/names/*", Status: http.StatusNotFound})
		j.faults(triggers["the resource is missing"].fault)
		j.push(bad()...)
		j.synced()
	})
	t.Run("an unknown deployment mode", func(t *testing.T) {
		const inMode = "config/resources/prod/ignition/schedule/night"
		j := newRollbackBench(t, simulator.Options{Mode: "prod"})
		j.push(gitserver.Write(inMode+"/config.json", "{}"), gitserver.Write(inMode+"/resource.json", nightJSON))
		j.synced()
		j.faults(simulator.LoadFault{Path: inMode, Hide: true})
		require.NoError(t, j.gw.Scans.Run("config"))
		j.fault(simulator.Fault{Route: "GET /data/api/v1/gateway-info", Status: http.StatusInternalServerError})
		j.push(gitserver.Write(inMode+"/config.json", `{"a": 1}`))
		j.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable)
		j.gw.Faults.Clear()
		lasts(j)
		j.ended(v1alpha1.GatewayError, v1alpha1.ReasonVerificationFailed)
	})
	t.Run("other triggers", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.target.Profile.AutoRollback = []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerConfigError}
		j.faults(triggers["scans of projects fail"].fault, triggers["the project is missing"].fault)
		j.push(bad()...)
		lasts(j)
	})
	t.Run("the first sync", func(t *testing.T) {
		j := &rollbackBench{bench: newSnapshotBench(t, simulator.Options{})}
		j.now = j.clock()
		j.target.Profile.AutoRollback = []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerProjectLoadError}
		j.faults(simulator.LoadFault{Path: "projects/line", Hide: true})
		j.push(firstCommit()...)
		lasts(j)
	})
	t.Run("a repair", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.put(view, "{}")
		j.faults(simulator.LoadFault{Path: "projects/line", Hide: true})
		j.target.Repair = true
		lasts(j)
		assert.Equal(t, `{"one": 1}`, j.read(view))
	})
	t.Run("a requested rollback", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		j.push(gitserver.Write(view, `{"one": 2}`))
		j.synced()
		j.target.Commit, j.target.RequestedRollback = j.good, true
		j.faults(simulator.LoadFault{Path: "projects/line", Hide: true})
		lasts(j)
		assert.Equal(t, `{"one": 1}`, j.read(view))
	})
}

func TestRetry(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	retry := func(j *rollbackBench, commit plan.ID) {
		j.target.Retry = annotation.RetryValue(commit.String(), *j.now)
	}
	t.Run("syncs the commit again", func(t *testing.T) {
		j := rolledBack(t)
		j.faults()
		retry(j, j.target.Commit)
		assert.Nil(t, j.synced().AutoRollback)
		j.restart(t.TempDir())
		j.synced()
	})
	t.Run("rolls back once for each commit", func(t *testing.T) {
		j := rolledBack(t)
		retry(j, j.target.Commit)
		for range 10 { // sequence: time passes
			j.pass(10 * time.Second)
			r := j.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
			require.Nil(t, r.AutoRollback)
			require.Equal(t, j.target.Commit, r.Commit)
		}
		assert.Contains(t, strings.Join(j.sync().Notes, "\n"), "already rolled back automatically")
		j.restart(t.TempDir())
		assert.Nil(t, j.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed).AutoRollback)
		j.push(gitserver.Write("projects/line/other.json", "{}"))
		j.fails(v1alpha1.ReasonScanFailed, 30*time.Second)
		j.back(v1alpha1.TriggerScanFailure) // another commit can be rolled back, too
	})
	t.Run("after a requested restore", func(t *testing.T) {
		j := newRollbackBench(t, simulator.Options{})
		retry(j, j.push(gitserver.Write(view, `{"one": 2}`)))
		j.target.Restore = j.synced().Snapshots[0].ID
		r := j.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Nil(t, r.AutoRollback, "an earlier retry does not count")
		assert.Contains(t, r.Message, "until it is retried: stoker retry")
		j.target.Retry = annotation.RetryValue(j.target.Commit.String(), j.now.Add(time.Second))
		j.synced()
		assert.Equal(t, `{"one": 2}`, j.read(view))
	})
}

// A forced sync that ends in a rollback does not go on: the gateway scans nothing while the commit is blocked.
func TestForcedSyncRollsBackOnce(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	j := refusing(t, "the project is missing")
	j.target.Force = "now"
	j.fails(v1alpha1.ReasonVerificationFailed, 30*time.Second)
	j.back(v1alpha1.TriggerProjectLoadError)
	j.gw.Requests.Reset()
	for range 3 { // sequence: time passes
		j.pass(time.Minute)
		j.back(v1alpha1.TriggerProjectLoadError)
	}
	assert.Empty(t, j.gw.Requests.List())
	note, err := j.engine.Dir().Note("force-sync")
	require.NoError(t, err)
	assert.Equal(t, "now", string(note), "the next commit must not be forced")
	j.target.Force = "later"
	j.back(v1alpha1.TriggerProjectLoadError) // only a retry lifts the block
}

// If the gateway itself is broken, the restored files do not load either. They stay, and the agent does not roll back again.
func TestRestoredStateFailsToo(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	j := newRollbackBench(t, simulator.Options{})
	j.faults(simulator.LoadFault{Path: "projects/line", Scan: true})
	commit := j.push(bad()...)
	j.fails(v1alpha1.ReasonScanFailed, 30*time.Second)
	for range 20 { // sequence: time passes
		r := j.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.Contains(t, r.Message, "rolled back automatically (scanFailure")
		require.Contains(t, r.Message, "restored the snapshot")
		require.Equal(t, commit, r.AutoRollback.Commit)
		require.Equal(t, j.good, r.Commit)
		j.pass(10 * time.Second)
	}
	j.faults()
	j.back(v1alpha1.TriggerScanFailure)
}

// If a commit arrives while the one before it fails, a rollback goes back to the commit before both.
func TestAutomaticRollbackOfTwoCommits(t *testing.T) {
	j := refusing(t, "the project is missing")
	j.fails(v1alpha1.ReasonVerificationFailed, 20*time.Second)
	j.push(gitserver.Write("projects/line/other.json", "{}"))
	j.fails(v1alpha1.ReasonVerificationFailed, 30*time.Second)
	j.back(v1alpha1.TriggerProjectLoadError)
	assert.NoFileExists(t, filepath.Join(j.data, "projects/line/other.json"))
}

// If a user removes what the gateway could not load, the commit counts as one that it has loaded: a rollback from the next one returns to it.
func TestAutomaticRollbackToAcceptedCommit(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	j := newRollbackBench(t, simulator.Options{})
	j.faults(triggers["the resource is missing"].fault)
	accepted := j.push(gitserver.Write(db+"/config.json", `{"url": "`+refused+`"}`))
	j.ended(v1alpha1.GatewayError, v1alpha1.ReasonVerificationFailed)
	require.NoError(t, os.RemoveAll(filepath.Join(j.data, db)))
	j.synced()
	j.faults(triggers["scans of projects fail"].fault)
	j.push(gitserver.Write(view, `{"one": "`+refused+`"}`))
	j.fails(v1alpha1.ReasonScanFailed, 30*time.Second)
	assert.Equal(t, accepted, j.ended(v1alpha1.GatewayError, v1alpha1.ReasonRolledBack).Commit)
}

// F14 of docs/internals/threats.md: a restarted agent completes an interrupted automatic rollback, once.
func TestInterruptedAutomaticRollback(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	begin := func(t *testing.T, keep int32) *rollbackBench {
		j := refusing(t, "scans of projects fail")
		j.target.Profile.Snapshots.RetentionCount = keep
		j.fails(v1alpha1.ReasonScanFailed, 30*time.Second)
		return j
	}
	again := func(t *testing.T, j *rollbackBench) {
		j.restart(t.TempDir())
		j.back(v1alpha1.TriggerScanFailure)
		assert.False(t, j.back(v1alpha1.TriggerScanFailure).Wrote())
	}
	t.Run("before the files are written", func(t *testing.T) {
		j := begin(t, 5)
		ctx, cancel := context.WithCancel(t.Context())
		j.at("stage", cancel) // the note is written
		r := j.engine.Sync(ctx, j.conn, j.target)
		require.NotNil(t, r.AutoRollback)
		require.Equal(t, j.target.Commit, r.Commit)
		again(t, j)
	})
	for name, keep := range map[string]int32{"one snapshot is kept": 1, "five snapshots are kept": 5} {
		t.Run("before the note says that it is done, "+name, func(t *testing.T) {
			j := begin(t, keep)
			j.back(v1alpha1.TriggerScanFailure)
			note := j.read(".stoker/note-restored")
			require.Contains(t, note, `,"done":true`)
			j.put(".stoker/note-restored", strings.Replace(note, `,"done":true`, "", 1))
			again(t, j)
		})
	}
}

func TestPairAutomaticRollback(t *testing.T) {
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	for _, b := range p.both() { // setup: automatic rollback on both nodes
		b.target.Facts.GatewayName = "area-4"
		b.target.Profile.Snapshots = new(anySnapshots)
		b.target.Profile.AutoRollback = []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerProjectLoadError}
		b.engine.Now = p.backup.engine.Now
	}
	p.push(firstCommit()...)
	good := p.master.synced().Commit
	p.backup.target.Profile = p.master.target.Profile
	p.backup.standby()
	require.NoError(t, p.master.gw.LoadFaults.Set(simulator.LoadFault{Path: "projects/line", While: refused, Hide: true}))
	p.push(gitserver.Write(view, `{"one": "`+refused+`"}`))
	for range 4 { // sequence: time passes
		p.master.sync()
		require.Nil(t, p.backup.sync().AutoRollback, "the active node decides")
		*now = now.Add(15 * time.Second)
	}
	r := p.master.ended(v1alpha1.GatewayError, v1alpha1.ReasonRolledBack)
	assert.Equal(t, good, r.Commit)
	assert.Equal(t, `{"one": 1}`, p.master.read(view))
	assert.Equal(t, `{"one": 1}`, p.backup.read(view), "the pair copies the restored files to the standby node")
	require.Nil(t, p.backup.sync().AutoRollback)
	assert.Equal(t, `{"one": 1}`, p.backup.read(view))
}
