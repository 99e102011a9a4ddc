package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// job runs the steps of one sync, and passes the result of each on to the next.
type job struct {
	engine *Engine
	in     *scope
	// resumes reports that the target is not known, and the task has the commit on the disk.
	resumes bool

	unloaded unloaded.Set // what the gateway has not loaded yet
	draft    draft        // of the target, if it was planned
	restored bool         // a snapshot was restored
	delivery *delivery    // of the target, if it was written
}

// errEnd ends a sync whose outcome is in the report already.
var errEnd = errors.New("the sync has ended")

// steps are the sequence of a sync: it writes the files to the disk, and then makes the gateway load them. A step returns errEnd if nothing
// follows.
var steps = []struct {
	name string
	do   func(*job, context.Context) error
}{
	{"end if syncing is paused", (*job).pause},
	{"open the data directory", (*job).open},
	{"restore a snapshot that replaces the target", (*job).restore},
	{"write the files of the target", (*job).deliver},
	{"end a dry run", (*job).endDryRun},
	{"make the gateway load the files, or roll back", (*job).load},
	{"check the names in the files after a restart", (*job).checkLater},
	{"report the node of a redundant pair", (*job).reportStandby},
	{"record a forced sync", func(j *job, _ context.Context) error { return j.in.recordForced() }},
}

// report runs the sync and returns its report.
func (j *job) report(ctx context.Context) *Report {
	r := &Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Ref: j.in.task.Ref, Target: j.in.task.Commit, Started: j.in.Now(), Steps: map[string]time.Duration{}}
	j.in.report = r
	if j.in.task.OnWorking == nil {
		j.in.task.OnWorking = func() {}
	}
	var err error
	for _, step := range steps {
		if err = step.do(j, ctx); err != nil {
			break
		}
	}
	if errors.Is(err, errEnd) {
		err = nil
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) && failure.Reason(err, "") == "" {
		err = context.Cause(ctx)
	}
	if j.in.dir != nil {
		h := j.in.dir.Manifest().Header()
		r.Commit, r.Files.Total = h.Commit, h.Files
		j.in.trees.remember(h, j.in.task.Commit, j.draft.rulesOr(j.in.rules), j.draft.desired)
	}
	if j.in.readOnly {
		err = errors.Join(err, j.in.dir.Close())
	} else if j.in.dir != nil {
		j.in.Record.Follow(j.in.dir)
		r.Snapshots = j.engine.snapshots(j.in, err != nil)
	}
	r.Duration = j.in.Now().Sub(r.Started)
	r.setOutcome(err)
	if j.in.dir != nil && !j.in.readOnly && !j.in.task.Profile.DryRun {
		a := auditor{in: j.in, records: &j.engine.records, failure: &j.engine.lastFailure, restored: j.restored}
		a.recordRecovery()
		a.record()
		r.History = a.last()
	}
	return r
}

// open parses the rules, opens the data directory and reads what the last sync left there.
func (j *job) open(context.Context) error {
	var err error
	if j.in.rules, err = rulesAt(j.in.Config, &j.in.task, j.in.task.Ref, j.in.task.Commit); err != nil {
		return err
	}
	if j.in.dir == nil {
		if err := j.openDir(); err != nil {
			return err
		}
	}
	if j.unloaded, err = j.in.unloadedNote.Load(); err != nil {
		return err
	}
	if j.in.task.Force != "" {
		done, err := j.in.dir.Note(forceNote)
		if j.in.force = string(done) != j.in.task.Force; err != nil {
			return err
		}
	}
	j.in.node, err = redundancy.New(redundancy.Config{
		Dir: j.in.dir, Memory: &j.engine.pairMemory, Log: j.in.Log, Now: j.in.Now, Note: j.in.note,
		Ref: j.in.task.Ref, Commit: j.in.task.Commit, Rules: j.in.rules, Repair: j.in.force || j.in.task.Repair, BeforeStart: j.in.task.BeforeStart,
	})
	return err
}

// openDir opens the data directory. If it is not open, a dry run opens it read-only, because another agent may own it.
func (j *job) openDir() error {
	var err error
	if !j.in.task.Profile.DryRun || j.engine.dir != nil {
		j.in.dir, err = j.engine.Open()
	} else {
		o := j.engine.diskOptions()
		o.ReadOnly, o.AllowUnseeded = true, true
		j.in.dir, err = disk.Open(j.in.DataDir, o)
		j.in.readOnly = err == nil
	}
	if err != nil {
		j.in.dir = nil
		return err
	}
	j.in.from, j.in.unloadedNote = j.in.dir.Manifest().Header().Commit, j.engine.records.unloaded
	if j.in.readOnly {
		j.in.unloadedNote = unloaded.NewNote(j.in.dir, nil)
	}
	j.in.gateway = &gateway{
		Gateway: j.in.conn.Gateway, hasAPIToken: j.in.conn.HasAPIToken, log: j.in.Log, dir: j.in.dir, readOnly: j.in.task.Profile.DryRun,
		start: j.in.task.Start, seenStart: &j.engine.seenStart, beforeStart: j.in.task.BeforeStart,
	}
	return nil
}

// restore carries out a request to restore a snapshot.
func (j *job) restore(ctx context.Context) error {
	if !j.in.task.Profile.DryRun && !j.resumes {
		r := j.restorer()
		replaced, err := r.run(ctx)
		j.unloaded, j.restored = r.unloaded, r.restored
		if err != nil {
			return err
		}
		if replaced {
			return errEnd
		}
	}
	if j.in.task.RestoreOnly {
		return failure.New(v1alpha1.ReasonGateClosed, "%s waits: no snapshot replaces it any more", j.in.task.Commit.Short())
	}
	return nil
}

func (j *job) restorer() *restorer {
	return &restorer{
		in: j.in, memory: &j.engine.memory, download: &j.engine.download, comparison: j.engine.comparison, unloaded: j.unloaded, restored: j.restored,
	}
}

// deliver writes the files of the target to the disk, unless they are there.
func (j *job) deliver(ctx context.Context) error {
	if j.in.filesDone() {
		j.in.report.Message = fmt.Sprintf("%s is on the disk already: nothing to do", j.in.task.Commit.Short())
		j.in.trees.attach(ctx, j.in.conn.Remote, j.in.task.Commit, j.in.task.Name)
		if err := j.refreshAccess(ctx); err != nil || !j.in.node.AccessChanged() {
			return err
		}
	}
	if err := j.checkWindows(ctx); err != nil {
		return err
	}
	j.in.task.OnWorking()
	d := &delivery{in: j.in, memory: &j.engine.memory, comparison: j.engine.comparison, references: &j.engine.references, unloaded: j.unloaded}
	err := d.run(ctx)
	j.unloaded, j.draft, j.delivery = d.unloaded, d.draft, d
	return err
}

// checkWindows returns an error if the maintenance windows do not allow this sync to change the gateway now. While the sync waits, the gateway
// still loads what an earlier sync delivered.
func (j *job) checkWindows(ctx context.Context) error {
	in := j.in
	if len(in.task.Profile.Windows) == 0 || !in.delivery().WaitsForWindow() {
		return nil
	}
	windows, errs := schedule.ParseWindows(in.task.Profile.Windows, in.task.Facts.GatewayName, in.task.Facts.PodName)
	if len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	window, until := windows.Closed(in.Now())
	if window == "" {
		return nil
	}
	if !j.unloaded.Empty() && !in.task.BeforeStart {
		var err error
		if j.unloaded, err = loadDiskCommit(ctx, in, j.unloaded); err != nil {
			return fmt.Errorf("load %s before %s: %w", in.dir.Manifest().Header().Commit.Short(), in.task.Commit.Short(), err)
		}
	}
	opens := "no time is known at which syncs are allowed"
	if !until.IsZero() {
		in.report.RetryAt = until
		opens = fmt.Sprintf("syncs are allowed at %s", until.UTC().Format(time.RFC3339))
	}
	return failure.New(v1alpha1.ReasonMaintenanceWindow, "%s waits: %s (maintenance window %s); to deliver it now: %s",
		in.task.Commit.Short(), opens, window, in.task.ask("approve", "--window", v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+in.task.Commit.String()))
}

// refreshAccess determines whether the node of a redundant pair has config access, for a sync that has no files to write.
func (j *job) refreshAccess(ctx context.Context) error {
	if !j.in.node.Paired() || j.in.task.BeforeStart || j.in.task.Profile.DryRun {
		return nil
	}
	j.in.report.Paired = true
	state, _ := j.in.gateway.state(ctx)
	if state != running && !j.in.node.WasStandby() {
		return nil // the first sync after the gateway's start determines it
	}
	return j.in.determineAccess(ctx, state)
}

// load makes the gateway load the files, and rolls back if it cannot load the target and the spec says so.
func (j *job) load(ctx context.Context) error {
	loadCtx, cancel := outlive(ctx, j.in.Grace)
	defer cancel()
	l := loader{in: j.in, unloaded: j.unloaded}
	err := l.load(loadCtx)
	if j.unloaded = l.unloaded; err == nil {
		j.engine.failures = decide.Failures{}
		return nil
	}
	back := autoRollback{restorer: j.restorer(), failures: &j.engine.failures, resumes: j.resumes, mismatches: l.mismatches}
	rolledBack, err := back.run(ctx, err)
	if j.unloaded, j.restored = back.restorer.unloaded, back.restorer.restored; err == nil && rolledBack {
		return errEnd
	}
	return err
}

// reportStandby makes Standby the outcome of a successful sync of a standby node. It returns an error while the other node of the pair still
// has to write files.
func (j *job) reportStandby(context.Context) error {
	message, err := j.in.node.Outcome()
	if err != nil {
		return err
	}
	if j.in.node.Standby() {
		j.in.report.Phase, j.in.report.Reason = v1alpha1.GatewayStandby, v1alpha1.ReasonStandby
	}
	j.in.report.Message = join(j.in.report.Message, message)
	return nil
}
