package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/api/v1alpha1"
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
	gateway  *gateway
	node     *redundancy.Node

	desired  *desired.Tree // the tree of the target, if it was needed
	embedded resource.EmbeddedSecrets
	unloaded unloaded // what the gateway has not loaded yet
	wrong    wrong    // what the gateway did not show as delivered
}

// run is the sequence of a sync: the files are brought to the disk, then the gateway loads them.
//
//	open the data directory                run.go
//	if a snapshot stands in for the target:
//	  restore it, load it, and end         restore.go
//	if the disk lacks the target:          files.go
//	  wait for a maintenance window        windows.go
//	  fetch, verify the signature          fetch.go
//	  render, plan, guard                  render.go
//	  wait for Designers and approvals     designers.go
//	  stage, ask the validation webhook    review.go
//	  lock, apply                          apply.go
//	scan, verify                           load.go, verify.go
//	if the gateway cannot load the target: baseline.go
//	  restore the snapshot from before it  restore.go
//	report
func (j *job) run(ctx context.Context) error {
	if j.t.Profile.Paused {
		return j.paused(ctx)
	}
	if err := j.open(); err != nil {
		return err
	}
	if back, err := j.restore(ctx); back || err != nil {
		return err
	}
	done := j.filesDone()
	if done {
		j.remind(ctx)
		if err := j.locateAgain(ctx); err != nil {
			return err
		}
		done = !j.node.Moved()
	}
	if !done {
		if err := j.checkWindows(ctx); err != nil {
			return err
		}
		if j.t.Working != nil {
			j.t.Working()
		}
		if err := (&files{job: j}).deliver(ctx); err != nil {
			return err
		}
	}
	if j.t.Profile.DryRun {
		return j.endDryRun(ctx)
	}
	loading, cancel := outlive(ctx, j.Grace)
	defer cancel()
	if err := (&loader{job: j}).load(loading); err != nil {
		return j.goBack(ctx, err)
	}
	j.failing = failing{}
	if err := j.reportPair(); err != nil {
		return err
	}
	return j.handled()
}

// outlive returns a context that outlives ctx by grace, for the scan that makes the gateway load its files and releases
// its scan lock.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { t.Stop() })
	})
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
	if j.force, err = j.forced(); err != nil {
		return err
	}
	j.node, err = redundancy.New(redundancy.Config{
		Dir: j.dir, Memory: &j.pair, Log: j.Log, Now: j.Now, Note: j.note,
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
		o := j.disk()
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
		Gateway: j.conn.Gateway, token: j.conn.Token, log: j.Log, dir: j.dir, readOnly: j.t.Profile.DryRun,
		start: j.t.Start, beforeStart: j.t.BeforeStart, seen: &j.seen,
	}
	return nil
}

// rulesAt returns the rules for a ref and a commit, which the profile's templates may use. They include the gateway's
// mounts.
func (j *job) rulesAt(ref string, commit plan.ID) (plan.Rules, error) {
	f := j.t.Facts
	f.Ref, f.Commit = ref, commit.String()
	r, err := plan.ParseRules(j.t.Profile, f, j.Limits)
	if err != nil {
		return r, err
	}
	seen, err := disk.Mounts(j.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // opening a missing directory reports it
		return r, err
	}
	r.Mounts = plan.NewMounts(append(seen, j.Mounts...))
	return r, nil
}

// forcedNote has the last handled force-sync request, so that a restart does not repeat it.
const forcedNote = "force-sync"

// forced reports whether the force-sync request is new.
func (j *job) forced() (bool, error) {
	if j.t.ForceID == "" {
		return false, nil
	}
	done, err := j.dir.Note(forcedNote)
	return string(done) != j.t.ForceID, err
}

// handled records the force-sync request as handled.
func (j *job) handled() error {
	if !j.force {
		return nil
	}
	return j.dir.SetNote(forcedNote, []byte(j.t.ForceID))
}

// filesDone reports, by the manifest alone, whether the target's files are on the disk already. Then nothing is fetched
// or read.
func (j *job) filesDone() bool {
	h := j.dir.Manifest().Header()
	if h.Commit != j.t.Commit || h.Ref != j.t.Ref && j.rules.DependsOnRef() || h.Rules != j.rules.Fingerprint() || !h.Complete || j.force || j.t.Repair {
		return false
	}
	j.r.Message = fmt.Sprintf("%s is on the disk already: nothing to do", j.t.Commit.Short())
	return true
}

// locate determines the node's place in a redundant pair.
func (j *job) locate(ctx context.Context, state gatewayState) error {
	err := j.node.Locate(ctx, j.gateway.place(state))
	j.r.Paired = j.node.Paired()
	return err
}

// locateAgain determines the place of a node of a pair for a sync that had nothing to do.
func (j *job) locateAgain(ctx context.Context) error {
	if !j.node.Paired() || j.t.BeforeStart || j.t.Profile.DryRun {
		return nil
	}
	j.r.Paired = true
	state, _ := j.gateway.state(ctx)
	if state != running && !j.node.WasStandby() {
		return nil // the sync after its start does this
	}
	return j.locate(ctx, state)
}

// reportPair ends a successful sync. On a standby node the outcome is Standby, or waiting for the other node.
func (j *job) reportPair() error {
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
	t := j.Now()
	return func() { j.r.Steps[name] += j.Now().Sub(t) }
}

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

// place returns where to read the node's place in a redundant pair from. Only the REST API of 8.3 tells it, with a
// token.
func (g *gateway) place(state gatewayState) redundancy.Source {
	from := redundancy.Source{Running: state == running, Role: g.platform.Role}
	if g.Gateway != nil && g.token && !g.legacy() {
		from.Gateway = g.Gateway
	}
	return from
}

var _ redundancy.Gateway = (*ignition.Client)(nil)
