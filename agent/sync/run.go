package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// job is what the steps of one sync share: its inputs, the opened data directory, and the report.
type job struct {
	*Engine
	conn Connections
	t    Task
	r    *Report

	// resumes reports that the target is not known, and t.Commit is the commit on the disk.
	resumes bool

	// Set by open.
	dir      *disk.Dir
	from     plan.ID // the commit in dir before the sync
	readOnly bool    // dir was opened only for this dry run
	rules    plan.Rules
	force    bool // the force-sync request is new
	restored bool // a snapshot was restored
	gateway  *gateway
	node     *redundancy.Node

	desired    *desired.Tree // the tree of the target, if it was needed
	embedded   resource.EmbeddedSecrets
	unloaded   unloaded // what the gateway has not loaded yet
	mismatches mismatches
}

// report runs the sync and returns its report.
func (j *job) report(ctx context.Context) *Report {
	r := &Report{Phase: Synced, Reason: v1alpha1.ReasonSynced, Ref: j.t.Ref, Target: j.t.Commit, Started: j.Now(), Steps: map[string]time.Duration{}}
	j.r = r
	if j.t.OnWorking == nil {
		j.t.OnWorking = func() {}
	}
	err := j.run(ctx)
	if j.dir != nil {
		h := j.dir.Manifest().Header()
		r.Commit, r.Files.Total = h.Commit, h.Files
		j.rememberDelivered(h)
		if j.lostTrees != nil && j.lostTrees.commit != h.Commit {
			j.lostTrees = nil
		}
	}
	if j.readOnly {
		err = errors.Join(err, j.dir.Close())
	} else if j.dir != nil {
		j.Record.Follow(j.dir)
		r.Snapshots = j.snapshots(err != nil)
	}
	r.Duration = j.Now().Sub(r.Started)
	r.setOutcome(err)
	if j.dir != nil && !j.readOnly && !j.t.Profile.DryRun {
		a := auditor{j}
		a.record()
		r.History = a.history()
	}
	return r
}

// run is the sequence of a sync: it writes the files to the disk, and then makes the gateway load them.
//
//	open the data directory                run.go
//	if a snapshot replaces the target:
//	  restore it, load it, and end         restore.go
//	if the disk lacks the target:          files.go
//	  wait for a maintenance window        windows.go
//	  fetch, verify the signature          fetch.go
//	  render, plan, guard                  desired.go
//	  wait for Designers and approvals     designers.go
//	  stage, ask the validation webhook    review.go
//	  lock, apply                          apply.go
//	scan, verify                           load.go, verify.go
//	if the gateway cannot load the target: autorollback.go
//	  restore the snapshot from before it  restore.go
//	report
func (j *job) run(ctx context.Context) error {
	if j.t.Profile.Paused {
		return j.paused(ctx)
	}
	if err := j.open(); err != nil {
		return err
	}
	if replaced, err := (restorer{j}).run(ctx); replaced || err != nil {
		return err
	}
	if j.t.RestoreOnly {
		return failure.New(v1alpha1.ReasonGateClosed, "%s waits: no snapshot replaces it any more", j.t.Commit.Short())
	}
	done := j.filesDone()
	if done {
		j.r.Message = fmt.Sprintf("%s is on the disk already: nothing to do", j.t.Commit.Short())
		j.attachRemote(ctx)
		if err := j.refreshAccess(ctx); err != nil {
			return err
		}
		done = !j.node.AccessChanged()
	}
	if !done {
		if err := j.checkWindows(ctx); err != nil {
			return err
		}
		j.t.OnWorking()
		if err := (&files{job: j}).deliver(ctx); err != nil {
			return err
		}
	}
	if j.t.Profile.DryRun {
		return j.endDryRun(ctx)
	}
	loadCtx, cancel := outlive(ctx, j.Grace)
	defer cancel()
	if err := (loader{j}).load(loadCtx); err != nil {
		return autoRollback{j}.run(ctx, err)
	}
	j.failures = decide.Failures{}
	if err := j.reportStandby(); err != nil {
		return err
	}
	return j.recordForced()
}

// outlive returns a context that outlives ctx by grace, for the scan that loads the files and releases the scan lock.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() { stop(); cancel() }
}

// open parses the rules, opens the data directory and reads what the last sync left there.
func (j *job) open() error {
	var err error
	if j.rules, err = j.rulesAt(j.t.Ref, j.t.Commit); err != nil {
		return err
	}
	if j.dir == nil {
		if err := j.openDir(); err != nil {
			return err
		}
	}
	if j.unloaded, err = loadUnloaded(j.dir); err != nil {
		return err
	}
	if j.force, err = j.forceRequested(); err != nil {
		return err
	}
	j.node, err = redundancy.New(redundancy.Config{
		Dir: j.dir, Memory: &j.pairMemory, Log: j.Log, Now: j.Now, Note: j.note,
		Ref: j.t.Ref, Commit: j.t.Commit, Rules: j.rules, Repair: j.force || j.t.Repair, BeforeStart: j.t.BeforeStart,
	})
	return err
}

// openDir opens the data directory. A dry run opens it read-only, beside the agent that owns it.
func (j *job) openDir() error {
	var err error
	if !j.t.Profile.DryRun || j.Engine.dir != nil {
		j.dir, err = j.Open()
	} else {
		o := j.diskOptions()
		o.ReadOnly, o.AllowUnseeded = true, true
		j.dir, err = disk.Open(j.DataDir, o)
		j.readOnly = err == nil
	}
	if err != nil {
		j.dir = nil
		return err
	}
	j.from = j.dir.Manifest().Header().Commit
	j.gateway = &gateway{
		Gateway: j.conn.Gateway, hasAPIToken: j.conn.HasAPIToken, log: j.Log, dir: j.dir, readOnly: j.t.Profile.DryRun,
		start: j.t.Start, seenStart: &j.seenStart, beforeStart: j.t.BeforeStart,
	}
	return nil
}

// rulesAt returns the rules for a ref and a commit, which the profile's templates may use, with the gateway's mounts.
func (j *job) rulesAt(ref string, commit plan.ID) (plan.Rules, error) {
	f := j.t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(j.t.Profile, f, j.Limits)
	if err != nil {
		return r, err
	}
	found, err := disk.Mounts(j.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // opening a missing directory reports it
		return r, err
	}
	r.Mounts = plan.NewMounts(append(found, j.Mounts...))
	return r, nil
}

// forceNote has the last force-sync request that was carried out, so that a restart does not repeat it.
const forceNote = "force-sync"

// forceRequested reports whether the force-sync request is new.
func (j *job) forceRequested() (bool, error) {
	if j.t.Force == "" {
		return false, nil
	}
	done, err := j.dir.Note(forceNote)
	return string(done) != j.t.Force, err
}

// recordForced records that the force-sync request was carried out.
func (j *job) recordForced() error {
	if !j.force {
		return nil
	}
	j.Record.Forced(j.t.Force)
	return j.dir.SetNote(forceNote, []byte(j.t.Force))
}

// filesDone reports whether, by the manifest alone, the target's files are on the disk already.
func (j *job) filesDone() bool {
	h := j.dir.Manifest().Header()
	return j.describesTarget(h) && h.Complete && !j.force && !j.t.Repair
}

// describesTarget reports whether a manifest was written for the target's files.
func (j *job) describesTarget(h plan.Header) bool {
	sameRef := h.Ref == j.t.Ref || !j.rules.DependsOnRef()
	return h.Commit == j.t.Commit && sameRef && h.Rules == j.rules.Fingerprint()
}

// determineAccess determines whether the node of a redundant pair has config access.
func (j *job) determineAccess(ctx context.Context, state gatewayState) error {
	err := j.node.DetermineAccess(ctx, j.gateway.pairSource(state))
	j.r.Paired = j.node.Paired()
	return err
}

// refreshAccess calls determineAccess for a sync that has no files to write.
func (j *job) refreshAccess(ctx context.Context) error {
	if !j.node.Paired() || j.t.BeforeStart || j.t.Profile.DryRun {
		return nil
	}
	j.r.Paired = true
	state, _ := j.gateway.state(ctx)
	if state != running && !j.node.WasStandby() {
		return nil // the first sync after the gateway's start does this
	}
	return j.determineAccess(ctx, state)
}

// reportStandby makes Standby the outcome of a successful sync of a standby node. It fails while the other node must write.
func (j *job) reportStandby() error {
	message, err := j.node.Outcome()
	if err != nil {
		return err
	}
	if j.node.Standby() {
		j.r.Phase, j.r.Reason = Standby, v1alpha1.ReasonStandby
	}
	j.r.Message = join(j.r.Message, message)
	return nil
}

// step starts a step for Report.Steps and the progress display. The returned function ends it.
func (j *job) step(name string) func() {
	j.Progress(name, 0, 0)
	started := j.Now()
	return func() { j.r.Steps[name] += j.Now().Sub(started) }
}

// note adds a note to the report.
func (j *job) note(format string, args ...any) {
	j.r.Notes = append(j.r.Notes, fmt.Sprintf(format, args...))
}

// join joins two parts of a message.
func join(message, more string) string {
	if message == "" || more == "" {
		return message + more
	}
	return message + "; " + more
}
