package sync

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// files writes the target's files to the disk.
type files struct {
	*job
	before gatewayState // before the first file moved
	header *plan.Header // the manifest header of the snapshot that is restored; nil when a commit is synced
}

// deliver writes the files to the disk. It tries again once for each of two reasons. If git objects turn out to be damaged,
// it fetches them again. If git wins and the gateway saved a resource after the plan, it replaces the whole resource.
func (f *files) deliver(ctx context.Context) error {
	initialNotes := slices.Clone(f.r.Notes)
	var notes []string // of all attempts that were not discarded
	refetched, replanned := false, false
	for {
		err := f.attempt(ctx)
		foreign, wroteMeanwhile := errors.AsType[*disk.ForeignError](err)
		switch {
		case repo.IsDamaged(err) && !refetched:
			f.Log.Warn("fetching damaged git objects again", "reason", err)
			refetched, f.r.Notes = true, slices.Clone(initialNotes)
			continue
		case wroteMeanwhile && f.rules.Conflict == plan.GitWins && !replanned:
			f.Log.Info("planning again", "reason", foreign)
			replanned, notes, f.r.Notes = true, f.r.Notes, nil
			continue
		}
		for _, n := range f.r.Notes {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
		if f.r.Notes = notes; err != nil || f.t.Profile.DryRun {
			return err
		}
		return f.node.RecordCompared(f.desired)
	}
}

// attempt plans, stages and applies the target once.
func (f *files) attempt(ctx context.Context) error {
	f.embedded = resource.EmbeddedSecrets{Refuse: f.t.Profile.EmbeddedSecretPolicy == v1alpha1.EmbeddedSecretRefuse}
	defer func() {
		if w := f.embedded.Warning(); w != "" {
			f.note("%s", w)
		}
	}()
	f.lostTrees.setRemote(f.conn.Remote) // for drift detection, if this attempt fails
	changes, err := f.plan(ctx)
	if err != nil {
		return err
	}
	f.r.Notes = append(f.r.Notes, changes.Warnings...)
	if f.t.Profile.DryRun {
		return f.dryRun(ctx, changes)
	}
	copied := f.node.Copied()
	if f.before, err = f.ready(ctx); err != nil {
		return err
	}
	if f.node.Copied() && !copied { // the node's role has changed: the pair may have copied files
		if changes, err = f.compute(ctx); err != nil {
			return err
		}
	}
	if changes, err = f.node.Restrict(changes, f.desired); err != nil {
		return err
	}
	staged, err := f.stage(ctx, changes)
	if err != nil {
		return err
	}
	return f.apply(ctx, changes, staged)
}

// plan fetches the commit, verifies its signature and compares it with the manifest and the disk.
func (f *files) plan(ctx context.Context) (*plan.Changes, error) {
	done := f.step("fetch")
	stats, err := f.fetch(ctx)
	done()
	if err != nil {
		return nil, err
	}
	f.r.Fetch = Fetch{Kind: string(stats.Kind), Objects: stats.Objects, Bytes: stats.Bytes}
	if v := f.conn.Verifier; v != nil {
		if err := f.Store.Verify(ctx, v, f.conn.Remote, f.t.Commit, f.t.Ref); err != nil {
			return nil, err
		}
	}
	defer f.step("plan")()
	defer f.limitPlanning(ctx)()
	if f.rules.Renders() {
		v := f.gateway.version(ctx)
		f.rules.Form = resource.FormOf(v.Major, v.Minor) // in which the gateway signs
	}
	if f.desired, err = f.desiredTree(f.Store, f.t.Commit, f.rules); err != nil {
		return nil, err
	}
	if err := f.fetchBlobs(ctx); err != nil {
		return nil, err
	}
	return f.compute(ctx)
}

// compute compares the target with the manifest and the disk.
func (f *files) compute(ctx context.Context) (*plan.Changes, error) {
	defer f.limitPlanning(ctx)()
	h := f.dir.Manifest().Header()
	in := planner.Input{
		Desired: f.desired, From: h.Commit, To: f.t.Commit, Manifest: f.dir.Manifest(), State: f.dir.Within(ctx),
		Repair: f.force || f.t.Repair, Verify: f.force,
	}
	copied := f.node.Copied()
	if copied {
		in.Replicated = redundancy.Replicated
	}
	if h.Complete && h.Rules == f.rules.Fingerprint() && !in.Repair && !copied && f.Store.Has(h.Commit) {
		// Without the old commit the plan is a full one, which is only slower.
		if previous, err := f.previousTree(h); err == nil {
			in.Previous = previous
		} else {
			f.Log.Debug("previous commit unreadable, comparing every file", "commit", h.Commit.String(), "error", err)
		}
	}
	if p := f.t.Proposals; p != nil {
		in.GitWins, in.Proposed = p.Watches, p.Pending
		if f.force { // the operator requests git's version
			in.Proposed = nil
		}
	}
	in.AllowMassDeletion = f.t.RolloutRollback || annotation.ConfirmsDeletion(f.t.ConfirmDeletion, f.t.Commit.String())
	var err error
	f.r.Changes, err = planner.Compute(in)
	if err == nil && f.r.Changes.Held != nil && f.r.Changes.Held.Reason == v1alpha1.ReasonMassDeletion {
		short := f.t.Commit.Short()
		f.r.Changes.Held.Message += "; to approve this: " + f.t.ask("sync", "--confirm-deletion="+short, v1alpha1.AnnotationConfirmDeletion, short)
	}
	return f.r.Changes, err
}

// ready returns the gateway's state, or an error if files must not be written now. The sync may write while the gateway is
// stopped, because the next start reads the files. It must not write while the gateway starts, because the gateway is
// reading them, nor while it is unreachable, because it may be running and the agent could not make it scan. ready also
// determines whether the node of a redundant pair has config access.
func (f *files) ready(ctx context.Context) (gatewayState, error) {
	state := stopped
	if !f.t.BeforeStart {
		var err error
		state, err = f.gateway.state(ctx)
		if state == unavailable {
			return state, err
		}
		if state == running {
			if err := f.gateway.readPlatform(ctx); err != nil {
				return state, err
			}
		}
	}
	return state, f.determineAccess(ctx, state)
}

// stage validates the files and writes them to the staging directory. An open Designer, the validation webhook, a conflict
// or a mass deletion holds the sync; the error says which.
func (f *files) stage(ctx context.Context, changes *plan.Changes) (*disk.Staged, error) {
	if err := f.checkProposals(changes); err != nil {
		return nil, err
	}
	if f.lastHold == f.holdFor("") { // the plan was staged before, so check the Designers first
		if err := f.checkDesigners(ctx, changes); err != nil {
			return nil, err
		}
	}
	if h := changes.Held; h != nil && f.lastHold == f.holdFor(h.Message) {
		return nil, failure.New(h.Reason, "%s", h.Message)
	}
	if err := f.review(ctx, changes, false); err != nil {
		return nil, err
	}
	if err := f.validateAdopted(ctx, changes); err != nil {
		return nil, err
	}
	done := f.step("stage")
	staged, err := f.dir.Stage(ctx, changes, f.Store.SortKey, f.source(changes))
	done()
	if err != nil {
		return nil, err
	}
	if err := f.review(ctx, changes, true); err != nil {
		return nil, errors.Join(err, staged.Discard())
	}
	if h := changes.Held; h != nil {
		f.lastHold = f.holdFor(h.Message)
		return nil, errors.Join(failure.New(h.Reason, "%s", h.Message), staged.Discard())
	}
	return staged, nil
}

// checkProposals returns an error if the plan would replace changes that were made on the gateway and are still being
// proposed to git. A forced sync replaces them.
func (f *files) checkProposals(changes *plan.Changes) error {
	p := f.t.Proposals
	if p == nil || f.force {
		return nil
	}
	var paths []string
	for _, c := range changes.List {
		if c.Conflict && p.Watches(c.Path) {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return p.Replace(paths)
}

// hold identifies a plan that was staged and checked and then held. Its reason is the Held.Message of the plan, or "" if an
// open Designer holds it. While the same plan is held, its files are not staged again.
type hold struct {
	commit plan.ID
	rules  string
	reason string
}

func (j *job) holdFor(reason string) hold { return hold{j.t.Commit, j.rules.Fingerprint(), reason} }

// source returns a disk.Source that writes git's files, and checks that the gateway can use them.
func (j *job) source(changes *plan.Changes) disk.Source {
	counts := changes.Counts()
	total, n := counts.Added+counts.Modified, 0
	return func(w io.Writer, c plan.Change) error {
		check := resource.NewChecker(c.Path)
		if _, err := j.desired.WriteBlob(boundFile(io.MultiWriter(w, check), c.Path, j.MaxBlob), c.ID); err != nil {
			return err
		}
		n++
		j.Progress("stage", n, total)
		return j.embedded.Check(check)
	}
}

// boundFile returns a writer that fails at the size limit of a file, before the file fills the disk. A limit of 0 means no limit.
func boundFile(w io.Writer, path string, most int64) io.Writer {
	if most <= 0 {
		return w
	}
	return bound.NewWriter(w, most, func() error {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than --max-blob, %d bytes", path, most)
	})
}

// validateAdopted checks the files that the sync is about to adopt unchanged. They must pass the same check as written
// files. Otherwise a commit that other gateways refuse would count as good on a gateway that already had its files.
func (f *files) validateAdopted(ctx context.Context, changes *plan.Changes) error {
	defer f.step("validate")()
	for _, c := range changes.List {
		if c.Op != plan.Adopt || c.Owned {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		check := resource.NewChecker(c.Path)
		err := f.dir.CopyTo(ctx, boundFile(check, c.Path, f.MaxBlob), c.Path)
		if errors.Is(err, fs.ErrNotExist) { // removed since the plan: the next comparison reports it as drift
			continue
		}
		if err == nil {
			err = f.embedded.Check(check)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dryRun validates what would be written, and writes nothing.
func (f *files) dryRun(ctx context.Context, changes *plan.Changes) error {
	defer f.step("validate")()
	src := f.source(changes)
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
	if err := f.validateAdopted(ctx, changes); err != nil {
		return err
	}
	f.r.Phase, f.r.Reason, f.r.DryRun = Pending, v1alpha1.ReasonDryRun, true
	f.r.Message, f.r.Planned = "dry run, nothing was written: "+changes.Summary(), changes.Counts()
	if err := f.dir.Seeded(); err != nil && !f.Disk.AllowUnseeded {
		f.note("a sync would wait: %v", err)
	}
	if changes.Held != nil {
		return failure.New(changes.Held.Reason, "%s", changes.Held.Message)
	}
	return nil
}
