package sync

import (
	"context"
	"errors"
	"slices"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/references"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// delivery writes the target's files to the disk.
type delivery struct {
	in         *scope
	memory     *memory
	comparison *disk.Comparison
	references *references.Keeper

	unloaded unloaded.Set // what the gateway has not loaded; run adds the target
	draft    draft        // of the last attempt
	before   plan.Header  // the header of the manifest before that attempt
	late     bool         // checkReferences runs only when the gateway has loaded the files
}

// run writes the files. It tries again once for each of two reasons. If git objects turn out to be damaged, it fetches them again. If git wins
// and the gateway saved a resource after the plan, it replaces the whole resource.
func (d *delivery) run(ctx context.Context) error {
	in := d.in
	initialNotes := slices.Clone(in.report.Notes)
	var notes []string // of all attempts that were not discarded
	refetched, replanned := false, false
	for {
		err := d.attempt(ctx)
		foreign, wroteMeanwhile := errors.AsType[*disk.ForeignError](err)
		switch {
		case repo.IsDamaged(err) && !refetched:
			in.Log.Warn("fetching damaged git objects again", "reason", err)
			refetched, in.report.Notes = true, slices.Clone(initialNotes)
			continue
		case wroteMeanwhile && in.rules.Conflict == plan.GitWins && !replanned:
			in.Log.Info("planning again", "reason", foreign)
			replanned, notes, in.report.Notes = true, in.report.Notes, nil
			continue
		}
		for _, n := range in.report.Notes {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
		if in.report.Notes = notes; err != nil || in.task.Profile.DryRun {
			return err
		}
		return in.node.RecordCompared(d.draft.desired)
	}
}

// attempt plans, stages and applies the target once.
func (d *delivery) attempt(ctx context.Context) error {
	in := d.in
	in.trees.lost.setRemote(in.conn.Remote) // for drift detection, if this attempt fails
	var err error
	if d.draft, err = (drafter{in}).draft(ctx); err != nil {
		return err
	}
	in.report.Notes = append(in.report.Notes, d.draft.changes.Warnings...)
	d.before = in.dir.Manifest().Header()
	// After a restart, all names of a commit are read once. With the policy warn, the delivery does not wait for that.
	d.late = in.task.Profile.References == v1alpha1.ReferencesWarn && d.references.IsNew() && !d.before.Commit.IsZero() && !in.task.Profile.DryRun &&
		!references.BringModules(d.draft.changes, in.dir.Within(ctx))
	if !d.late {
		if err := d.checkReferences(ctx); err != nil {
			return err
		}
	}
	s := stager{in: in, desired: d.draft.desired, embedded: resource.EmbeddedSecrets{Refuse: in.task.Profile.EmbeddedSecretPolicy == v1alpha1.EmbeddedSecretRefuse}}
	defer func() {
		if w := s.embedded.Warning(); w != "" {
			in.note("%s", w)
		}
	}()
	if in.task.Profile.DryRun {
		return s.dryRun(ctx, d.draft.changes)
	}
	copied := in.node.Copied()
	state, err := ready(ctx, in)
	if err != nil {
		return err
	}
	changes := d.draft.changes
	if in.node.Copied() && !copied { // the node's role has changed: the pair may have copied files
		if changes, err = (drafter{in}).compare(ctx, d.draft); err != nil {
			return err
		}
	}
	if changes, err = in.node.Restrict(changes, d.draft.desired); err != nil {
		return err
	}
	g := guard{in: in, state: state, memory: d.memory}
	staged, err := d.stage(ctx, g, &s, changes)
	if err != nil {
		return err
	}
	a := applier{in: in, guard: g, desired: d.draft.desired, unloaded: d.unloaded}
	d.comparison.Wait()
	err = a.apply(ctx, changes, staged)
	d.unloaded = a.unloaded
	return err
}

// ready returns the gateway's state, or an error if files must not be written now. The sync may write while the gateway is
// stopped, because the next start reads the files. It must not write while the gateway starts, because the gateway is
// reading them, nor while it is unreachable, because it may be running and the agent could not make it scan. ready also
// determines whether the node of a redundant pair has config access.
func ready(ctx context.Context, in *scope) (gatewayState, error) {
	state := stopped
	if !in.task.BeforeStart {
		var err error
		state, err = in.gateway.state(ctx)
		if state == unavailable {
			return state, err
		}
		if state == running {
			if err := in.gateway.readPlatform(ctx); err != nil {
				return state, err
			}
		}
	}
	return state, in.determineAccess(ctx, state)
}

// stage validates the files and writes them to the staging directory. Proposed changes, an open Designer, the validation
// webhook, a conflict or a mass deletion holds the sync; the error says which.
func (d *delivery) stage(ctx context.Context, g guard, s *stager, changes *plan.Changes) (*disk.Staged, error) {
	if err := g.checkProposals(changes); err != nil {
		return nil, err
	}
	if d.memory.hold == g.holdFor("") { // the plan was staged before, so check the Designers first
		if err := g.checkDesigners(ctx, changes); err != nil {
			return nil, err
		}
	}
	if h := changes.Held; h != nil && d.memory.hold == g.holdFor(h.Message) {
		return nil, failure.New(h.Reason, "%s", h.Message)
	}
	if err := g.review(ctx, changes, false); err != nil {
		return nil, err
	}
	if err := s.validateAdopted(ctx, changes); err != nil {
		return nil, err
	}
	done := d.in.step("stage")
	staged, err := d.in.dir.Stage(ctx, changes, d.in.Store.SortKey, s.source(changes))
	done()
	if err != nil {
		return nil, err
	}
	if err := g.review(ctx, changes, true); err != nil {
		return nil, errors.Join(err, staged.Discard())
	}
	if h := changes.Held; h != nil {
		d.memory.hold = g.holdFor(h.Message)
		return nil, errors.Join(failure.New(h.Reason, "%s", h.Message), staged.Discard())
	}
	return staged, nil
}

// checkReferences notes names in the draft's files of things that do not exist, or refuses the target because of them.
func (d *delivery) checkReferences(ctx context.Context) error {
	in := d.in
	defer in.step("references")()
	defer in.trees.limit(ctx)()
	notes, err := d.references.Check(in.task.Profile.References, d.referencesOf(ctx))
	in.report.Notes = append(in.report.Notes, notes...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// referencesOf returns what a check of the draft's names reads.
func (d *delivery) referencesOf(ctx context.Context) references.Target {
	in := d.in
	_, delivered := in.Record.Delivered()
	return references.Target{
		Commit: in.task.Commit, Rules: d.draft.rules, Tree: d.draft.desired, Changes: d.draft.changes,
		Redelivered: in.task.RequestedRollback || in.task.RolloutRollback || delivered == in.task.Commit,
		Before:      d.before, Manifest: in.dir.Manifest(), State: in.dir.Within(ctx), Mode: in.task.Profile.DeploymentMode,
		Unseeded: d.before.Commit.IsZero() && (in.task.BeforeStart || in.task.NewVolume || in.dir.CheckSeeded() != nil),
		TreeOf: func(commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
			if !in.Store.Has(commit) {
				return nil, errNotStored
			}
			return in.trees.optional(commit, rules)
		},
		RulesOf: func(ref string, commit plan.ID) (plan.Rules, error) { return rulesAt(in.Config, &in.task, ref, commit) },
		Modules: func() []string { return in.gateway.modules(ctx) }, Log: in.Log,
	}
}

// checkLater runs the check that the delivery left out (delivery.late). A process that ends after one sync does not read all names for it.
func (j *job) checkLater(ctx context.Context) error {
	if d := j.delivery; d != nil && d.late && !j.engine.Once {
		if err := d.checkReferences(ctx); err != nil { // with the policy warn, the only error is that the agent stops
			j.in.Log.Debug("names not checked", "reason", err)
		}
	}
	return nil
}
