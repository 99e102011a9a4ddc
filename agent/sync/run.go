package sync

import (
	"context"
	"errors"
	"fmt"
	"io"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// run is the state of one sync.
type run struct {
	*Engine
	conn Connections
	t    Target
	r    *Report

	dir     *disk.Dir
	rules   plan.Rules
	desired *plan.Desired
	owed    owed
	before  gatewayState // before the first file moved
	again   bool         // the sync has planned a second time
	force   bool
	looking bool // dir was opened read-only for this dry run
	resumes bool // the target is the commit on the disk; the wanted commit is unknown

	platform             ignition.Platform
	standby              standby
	brought              bool // the pair may have copied the replicated files
	planned              bool // value of brought when the plan was made
	takes, steps         bool // the node has taken over, or stepped back, since its files were compared
	info                 ignition.Info
	infoKnown, infoAsked bool
}

func (s *run) all(ctx context.Context) error {
	if s.t.Profile.Paused {
		return s.paused(ctx)
	}
	var err error
	if s.rules, err = s.rulesAt(s.t.Ref, s.t.Commit); err != nil {
		return err
	}
	if s.dir, err = s.open(); err != nil {
		return err
	}
	if err := s.forgetHeld(); err != nil {
		return err
	}
	if s.owed, err = loadOwed(s.dir); err != nil {
		return err
	}
	if s.force, err = s.forced(); err != nil {
		return err
	}
	there := s.settled()
	if there {
		s.remind(ctx)
		if err := s.recall(ctx); err != nil {
			return err
		}
		there = !s.takes && !s.steps
	}
	if !there {
		if s.t.Working != nil {
			s.t.Working()
		}
		if err := s.files(ctx); err != nil {
			return err
		}
	}
	if s.t.Profile.DryRun {
		return s.unasked(ctx)
	}
	ctx, cancel := lasting(ctx, s.Grace)
	defer cancel()
	if err := s.deliver(ctx); err != nil {
		return err
	}
	return s.handled()
}

// open opens the data directory. A dry run opens it read-only, beside the agent that owns it.
func (s *run) open() (*disk.Dir, error) {
	if !s.t.Profile.DryRun || s.Engine.dir != nil {
		return s.Open()
	}
	o := s.disk()
	o.ReadOnly, o.AllowUnseeded = true, true
	d, err := disk.Open(s.DataDir, o)
	s.looking = err == nil
	return d, err
}

const forcedNote = "force-sync"

// forced reports whether the force-sync request is new. The data directory has the last handled one, so that a restart
// does not repeat it.
func (s *run) forced() (bool, error) {
	if s.t.ForceID == "" {
		return false, nil
	}
	done, err := s.dir.Note(forcedNote)
	return string(done) != s.t.ForceID, err
}

// handled records the force-sync request as handled, and drops the approved mass deletion, so that a repetition is
// reported again.
func (s *run) handled() error {
	if !s.force {
		return nil
	}
	if err := s.dir.SetNote(heldNote, nil); err != nil {
		return err
	}
	return s.dir.SetNote(forcedNote, []byte(s.t.ForceID))
}

// settled reports, by the manifest alone, whether the target's files are on the disk already. Then nothing is fetched
// or read.
func (s *run) settled() bool {
	h := s.dir.Manifest().Header()
	if h.Commit != s.t.Commit || h.Ref != s.t.Ref && s.rules.AsksForRef() || h.Rules != s.rules.Fingerprint() || !h.Complete || s.force || s.t.Repair {
		return false
	}
	s.r.Message = fmt.Sprintf("%s is there already: nothing to do", s.t.Commit.Short())
	return true
}

// files brings the commit's files to the disk. If the git objects turn out to be damaged, it fetches them again, once.
func (s *run) files(ctx context.Context) error {
	notes := len(s.r.Notes)
	err := s.bring(ctx)
	if repo.IsDamaged(err) {
		s.Log.Warn("git objects are fetched again", "reason", err)
		s.r.Notes = s.r.Notes[:notes]
		err = s.bring(ctx)
	}
	if err != nil {
		return err
	}
	return s.whole()
}

func (s *run) bring(ctx context.Context) error {
	s.lost.from(s.conn.Remote) // until the target is on the disk, drift detection needs the previous commit
	changes, err := s.plan(ctx)
	if err != nil {
		return err
	}
	s.r.Changes = changes
	s.r.Notes = append(s.r.Notes, changes.Warnings...)
	if s.t.Profile.DryRun {
		return s.dryRun(ctx, changes)
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	if changes, err = s.place(ctx, changes); err != nil {
		return err
	}
	if s.waited("") {
		if err := s.sessions(ctx, changes); err != nil {
			return err
		}
	}
	if h := changes.Held; h != nil && s.waited(h.Message) {
		return errors.Join(failure.New(h.Reason, "%s", h.Message), s.rememberHeld(h))
	}
	if err := s.adopted(ctx, changes); err != nil {
		return err
	}
	done := s.step("stage")
	staged, err := s.dir.Stage(ctx, changes, s.Store.SortKey, s.source(changes))
	done()
	if err != nil {
		return err
	}
	if h := changes.Held; h != nil {
		s.wait(h.Message)
		return errors.Join(failure.New(h.Reason, "%s", h.Message), staged.Discard(), s.rememberHeld(h))
	}
	return s.apply(ctx, changes, staged)
}

// plan fetches the commit and compares it with the manifest and the disk.
func (s *run) plan(ctx context.Context) (*plan.Changes, error) {
	done := s.step("fetch")
	stats, err := s.fetch(ctx)
	done()
	if err != nil {
		return nil, err
	}
	s.r.Fetch = Fetch{Kind: string(stats.Kind), Objects: stats.Objects, Bytes: stats.Bytes}
	defer s.step("plan")()
	defer s.during(ctx)()
	s.rules.Form = s.form(ctx)
	if s.desired, err = s.desire(s.t.Commit); err != nil {
		return nil, err
	}
	if err := s.differing(ctx); err != nil {
		return nil, err
	}
	was, err := s.lastPlace()
	if err != nil {
		return nil, err
	}
	s.brought = was.standby()
	return s.compute(ctx)
}

// compute compares the target with the manifest and the disk.
func (s *run) compute(ctx context.Context) (*plan.Changes, error) {
	defer s.during(ctx)()
	h := s.dir.Manifest().Header()
	in := plan.Input{
		Desired: s.desired, From: h.Commit, To: s.t.Commit, Manifest: s.dir.Manifest(), State: s.dir.Within(ctx),
		Repair: s.force || s.t.Repair, Verify: s.force,
	}
	if s.planned = s.brought; s.brought {
		in.Brought = replicated
	}
	if h.Complete && h.Rules == s.rules.Fingerprint() && !in.Repair && !s.brought && s.Store.Has(h.Commit) {
		// Without the old commit the plan is a full one, which is only slower.
		if previous, err := s.previous(h); err == nil {
			in.Previous = previous
		} else {
			s.Log.Debug("the last commit cannot be read; every file is compared", "commit", h.Commit.String(), "error", err)
		}
	}
	var err error
	if in.AllowMassDeletion, err = s.mayDelete(); err != nil {
		return nil, err
	}
	return plan.Compute(in)
}

// source returns a disk.Source that writes wanted files, and checks that the gateway can use them.
func (s *run) source(changes *plan.Changes) disk.Source {
	counts := changes.Counts()
	total, n := counts.Added+counts.Modified, 0
	return func(w io.Writer, c plan.Change) error {
		check := resource.NewChecker(c.Path)
		out := &bounded{w: io.MultiWriter(w, check), left: s.MaxBlob, path: c.Path, limit: s.MaxBlob}
		if _, err := s.desired.WriteBlob(out, c.ID); err != nil {
			return err
		}
		n++
		s.Progress("stage", n, total)
		return check.Close()
	}
}

// dryRun validates what would be written, and writes nothing.
func (s *run) dryRun(ctx context.Context, changes *plan.Changes) error {
	defer s.step("validate")()
	src := s.source(changes)
	for _, c := range changes.List {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		if err := src(io.Discard, c); err != nil {
			return err
		}
	}
	if err := s.adopted(ctx, changes); err != nil {
		return err
	}
	s.r.Phase, s.r.Reason, s.r.DryRun = Pending, v1alpha1.ReasonDryRun, true
	s.r.Message = "dry run, nothing was written: " + changes.Summary()
	if err := s.dir.Seeded(); err != nil && !s.Disk.AllowUnseeded {
		s.note("a sync would wait: %v", err)
	}
	if changes.Held != nil {
		return failure.New(changes.Held.Reason, "%s", changes.Held.Message)
	}
	return nil
}

// step starts a step for Report.Steps and the progress display. The returned function ends it.
func (s *run) step(name string) func() {
	s.Progress(name, 0, 0)
	t := s.Now()
	return func() { s.r.Steps[name] += s.Now().Sub(t) }
}
