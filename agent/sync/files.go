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
	"stoker.io/stoker/internal/failure"
)

// files brings the target's files to the disk.
type files struct {
	*job
	before gatewayState // before the first file moved
	header *plan.Header // header of the manifest to restore, when a snapshot is restored; nil when a commit is synced
}

// deliver brings the files to the disk, and tries again once for each of two reasons: git objects turn out to be
// damaged and are fetched again; or git wins, and the gateway saved a resource after the plan, so that the whole
// resource must be replaced.
func (f *files) deliver(ctx context.Context) error {
	first := slices.Clone(f.r.Notes)
	var earlier []string
	refetched, replanned := false, false
	for {
		err := f.attempt(ctx)
		foreign, wroteMeanwhile := errors.AsType[*disk.ForeignError](err)
		switch {
		case repo.IsDamaged(err) && !refetched:
			f.Log.Warn("fetching damaged git objects again", "reason", err)
			refetched, f.r.Notes = true, slices.Clone(first)
			continue
		case wroteMeanwhile && f.rules.Conflict == plan.GitWins && !replanned:
			f.Log.Info("planning again", "reason", foreign)
			replanned, earlier, f.r.Notes = true, f.r.Notes, nil
			continue
		}
		for _, n := range f.r.Notes {
			if !slices.Contains(earlier, n) {
				earlier = append(earlier, n)
			}
		}
		if f.r.Notes = earlier; err != nil || f.t.Profile.DryRun {
			return err
		}
		return f.node.Compared(f.desired)
	}
}

func (f *files) attempt(ctx context.Context) error {
	f.embedded = resource.EmbeddedSecrets{Refuse: f.t.Profile.EmbeddedSecretPolicy == v1alpha1.EmbeddedSecretRefuse}
	defer func() {
		if w := f.embedded.Warning(); w != "" {
			f.note("%s", w)
		}
	}()
	f.lost.from(f.conn.Remote) // drift detection fetches files of the commit on the disk, if the store has lost them
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
	defer f.during(ctx)()
	f.rules.Form = f.form(ctx)
	if f.desired, err = f.desire(f.t.Commit, f.rules); err != nil {
		return nil, err
	}
	if err := f.fetchBlobs(ctx); err != nil {
		return nil, err
	}
	return f.compute(ctx)
}

// form returns the form in which the gateway signs. It matters only if something is rendered.
func (f *files) form(ctx context.Context) resource.Form {
	if !f.rules.Renders() {
		return resource.Form83
	}
	v := f.gateway.version(ctx)
	return resource.FormOf(v.Major, v.Minor)
}

// compute compares the target with the manifest and the disk.
func (f *files) compute(ctx context.Context) (*plan.Changes, error) {
	defer f.during(ctx)()
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
		if previous, err := f.previous(h); err == nil {
			in.Previous = previous
		} else {
			f.Log.Debug("previous commit unreadable, comparing every file", "commit", h.Commit.String(), "error", err)
		}
	}
	if back := f.t.Back; back != nil {
		in.GitWins, in.Proposed = back.Watches, back.Proposed
		if f.force { // the operator asks for git's version
			in.Proposed = nil
		}
	}
	in.AllowMassDeletion = f.t.GoesBack || v1alpha1.ConfirmsDeletion(f.t.ConfirmDeletion, f.t.Commit.String())
	var err error
	f.r.Changes, err = planner.Compute(in)
	return f.r.Changes, err
}

// ready returns the gateway's state, or why files must not be written now. A stopped gateway reads its files at its
// next start, so they may be written. They must not be written while the gateway starts, because it is reading them,
// nor while it is unreachable, because it may be running and the agent could not make it scan. What may be written also
// depends on the node's place in a redundant pair.
func (f *files) ready(ctx context.Context) (gatewayState, error) {
	state := away
	if !f.t.BeforeStart {
		var err error
		state, err = f.gateway.state(ctx)
		if state == busy {
			return state, err
		}
		if state == running {
			if err := f.gateway.readPlatform(ctx); err != nil {
				return state, err
			}
		}
	}
	return state, f.locate(ctx, state)
}

// stage validates the files and writes them to the staging directory. It returns an error, which holds the sync,
// because of an open Designer, the validation webhook, a conflict or a mass deletion.
func (f *files) stage(ctx context.Context, changes *plan.Changes) (*disk.Staged, error) {
	if err := f.checkBack(changes); err != nil {
		return nil, err
	}
	if f.held == f.holdOf("") {
		if err := f.checkDesigners(ctx, changes); err != nil {
			return nil, err
		}
	}
	if h := changes.Held; h != nil && f.held == f.holdOf(h.Message) {
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
		f.held = f.holdOf(h.Message)
		return nil, errors.Join(failure.New(h.Reason, "%s", h.Message), staged.Discard())
	}
	return staged, nil
}

// checkBack asks whether the plan may replace changes that were made on the gateway and are being proposed to git. A forced sync replaces them.
func (f *files) checkBack(changes *plan.Changes) error {
	back := f.t.Back
	if back == nil || f.force {
		return nil
	}
	var paths []string
	for _, c := range changes.List {
		if c.Conflict && back.Watches(c.Path) {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return back.Replace(paths)
}

// hold identifies a plan that was staged and checked and then held: by its commit, its rules and Held.Message, or "" if
// an open Designer holds it. While the same plan is held, its files are not staged again.
type hold struct {
	commit plan.ID
	rules  string
	reason string
}

func (j *job) holdOf(reason string) hold { return hold{j.t.Commit, j.rules.Fingerprint(), reason} }

// source returns a disk.Source that writes wanted files, and checks that the gateway can use them.
func (j *job) source(changes *plan.Changes) disk.Source {
	counts := changes.Counts()
	total, n := counts.Added+counts.Modified, 0
	return func(w io.Writer, c plan.Change) error {
		check := resource.NewChecker(c.Path)
		out := &limitedWriter{w: io.MultiWriter(w, check), left: j.MaxBlob, path: c.Path, limit: j.MaxBlob}
		if _, err := j.desired.WriteBlob(out, c.ID); err != nil {
			return err
		}
		n++
		j.Progress("stage", n, total)
		return j.embedded.Check(check)
	}
}

// limitedWriter fails at the size limit of a file, before the file fills the disk. A limit of 0 means no limit.
type limitedWriter struct {
	w           io.Writer
	left, limit int64
	path        string
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.limit > 0 {
		if l.left -= int64(len(p)); l.left < 0 {
			return 0, failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than --max-blob, %d bytes", l.path, l.limit)
		}
	}
	return l.w.Write(p)
}

// validateAdopted checks the files that the sync is about to adopt unchanged. They must pass the same check as written
// files: otherwise a commit that other gateways refuse would count as good on a gateway that already had its files.
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
		err := f.dir.CopyTo(ctx, &limitedWriter{w: check, left: f.MaxBlob, path: c.Path, limit: f.MaxBlob}, c.Path)
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
