package sync

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/references"
)

// checkReferences notes what the files of the draft name and what does not exist, or refuses the target.
func (d *delivery) checkReferences(ctx context.Context) error {
	in := d.in
	defer in.step("references")()
	defer in.trees.limit(ctx)()
	notes, err := d.named.Check(in.t.Profile.References, d.referencesOf(ctx))
	in.r.Notes = append(in.r.Notes, notes...)
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
		Commit: in.t.Commit, Rules: d.draft.rules, Tree: d.draft.desired, Changes: d.draft.changes,
		Redelivered: in.t.RequestedRollback || in.t.RolloutRollback || delivered == in.t.Commit,
		Before:      d.before, Manifest: in.dir.Manifest(), State: in.dir.Within(ctx), Mode: in.t.Profile.DeploymentMode,
		Unseeded: d.before.Commit.IsZero() && (in.t.BeforeStart || in.t.NewVolume || in.dir.CheckSeeded() != nil),
		TreeOf: func(commit plan.ID, rules plan.Rules) (*desired.Tree, error) {
			if !in.Store.Has(commit) {
				return nil, errNotStored
			}
			return in.trees.optional(commit, rules)
		},
		RulesOf: func(ref string, commit plan.ID) (plan.Rules, error) { return rulesAt(in.Config, &in.t, ref, commit) },
		Modules: func() []string { return in.gateway.modules(ctx) }, Log: in.Log,
	}
}

// checkLater is the check of a delivery after which it did not run. A process for one sync leaves it out: it would read all names for nothing.
func (j *job) checkLater(ctx context.Context) error {
	if d := j.delivery; d != nil && d.late && !j.engine.Once {
		if err := d.checkReferences(ctx); err != nil { // the policy refuses nothing, so the agent stops
			j.in.Log.Debug("names not checked", "reason", err)
		}
	}
	return nil
}
