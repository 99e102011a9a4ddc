package decide

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestProposal(t *testing.T) {
	const ended, safe, settled = "ended", "safe", "settled"
	for state, want := range map[v1alpha1.ProposalState][]string{
		"": nil, v1alpha1.ProposalSettling: nil, v1alpha1.ProposalPushing: nil, v1alpha1.ProposalPushed: {safe}, v1alpha1.ProposalOpen: {safe},
		v1alpha1.ProposalRefused: {safe, settled}, v1alpha1.ProposalForeign: {safe}, v1alpha1.ProposalClosed: {ended, safe}, v1alpha1.ProposalMerged: {ended, safe},
	} {
		t.Run(string(state), func(t *testing.T) {
			for _, repair := range []bool{false, true} {
				p := Proposal{state, repair}
				assert.Equal(t, slices.Contains(want, ended), p.Ended())
				assert.Equal(t, slices.Contains(want, safe), p.Safe())
				assert.Equal(t, slices.Contains(want, settled) || p.RepairsClosed(), p.Settled())
				assert.Equal(t, repair && state == v1alpha1.ProposalClosed, p.RepairsClosed())
			}
		})
	}
}

// Each element of asks is one call of Replace, a minute after the one before.
func TestReplace(t *testing.T) {
	const (
		manual, gateway, git = v1alpha1.StrategyManual, v1alpha1.StrategyGatewayWins, v1alpha1.StrategyGitWins
		none, settling       = v1alpha1.ProposalState(""), v1alpha1.ProposalSettling
		pushed, open         = v1alpha1.ProposalPushed, v1alpha1.ProposalOpen
		merged               = v1alpha1.ProposalMerged
		yes, waits, unseen   = "yes", "waits", "unseen"
	)
	type ask struct {
		state v1alpha1.ProposalState
		seen  bool
		want  string
	}
	repeat := func(n int, a ask) []ask { return slices.Repeat([]ask{a}, n) }
	for name, c := range map[string]struct {
		strategy v1alpha1.ConflictStrategy
		asks     []ask
	}{
		"manual, merged":                          {manual, []ask{{merged, true, waits}}},
		"manual, for hours":                       {manual, repeat(200, ask{open, true, waits})},
		"gateway wins, pushed":                    {gateway, repeat(200, ask{pushed, true, waits})},
		"gateway wins, merged":                    {gateway, []ask{{open, true, waits}, {merged, true, yes}}},
		"git wins, not pushed yet":                {git, []ask{{none, true, waits}, {settling, true, waits}, {pushed, true, yes}}},
		"git wins, open":                          {git, []ask{{open, true, yes}}},
		"git wins, never pushed":                  {git, append(repeat(10, ask{settling, true, waits}), ask{settling, true, yes})},
		"git wins, never seen and never pushed":   {git, append(repeat(10, ask{none, false, waits}), ask{none, false, yes})},
		"not seen, but the state allows it":       {git, append(repeat(10, ask{pushed, false, unseen}), ask{pushed, false, yes}, ask{pushed, false, yes})},
		"seen after a minute":                     {git, []ask{{pushed, false, unseen}, {pushed, true, yes}}},
		"the wait begins again after it was safe": {git, slices.Concat([]ask{{settling, true, waits}, {pushed, true, yes}}, repeat(10, ask{settling, true, waits}), []ask{{settling, true, yes}})},
		"an earlier wait does not count":          {gateway, slices.Concat([]ask{{merged, false, unseen}, {open, true, waits}}, repeat(10, ask{merged, false, unseen}), []ask{{merged, false, yes}})},
	} {
		t.Run(name, func(t *testing.T) {
			w, now := Wait{}, day
			for i, a := range c.asks {
				var why string
				var notSeen bool
				w, why, notSeen = w.Blocks(Changes{c.strategy, Proposal{State: a.state}, a.seen, 10 * time.Minute, now})
				got := map[bool]string{true: unseen, false: waits}[notSeen]
				if why == "" {
					got = yes
				}
				assert.Equal(t, a.want, got, "minute %d", i)
				now = now.Add(time.Minute)
			}
		})
	}
}

func TestDriftRepair(t *testing.T) {
	repair := Drift{Files: 3, Policy: v1alpha1.DriftRepair, Desired: true}
	closed := Drift{Files: 3, Watched: 1, Policy: v1alpha1.DriftReport, RepairsClosed: true, Desired: true}
	assert.True(t, repair.Repair())
	assert.True(t, closed.Repair())
	for name, change := range map[string]func(*Drift){
		"nothing differs":  func(d *Drift) { d.Files = 0 },
		"no target":        func(d *Drift) { d.Desired = false },
		"hands off":        func(d *Drift) { d.DoNotTouch = true },
		"paused":           func(d *Drift) { d.Paused = true },
		"dry run":          func(d *Drift) { d.DryRun = true },
		"only report":      func(d *Drift) { d.Policy, d.RepairsClosed = v1alpha1.DriftReport, false },
		"nothing proposed": func(d *Drift) { d.Policy, d.Watched = v1alpha1.DriftReport, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, d := range []Drift{repair, closed} {
				change(&d)
				assert.False(t, d.Repair())
			}
		})
	}
}

// A repair never undoes a change that may still be on its way to git.
func TestProposalRepairs(t *testing.T) {
	for name, c := range map[string]struct {
		Proposal
		whenSeen bool // Repairs, if the state is about the change
	}{
		"none": {}, "settling": {Proposal: Proposal{State: v1alpha1.ProposalSettling}}, "open": {Proposal: Proposal{State: v1alpha1.ProposalOpen}},
		"closed": {Proposal: Proposal{State: v1alpha1.ProposalClosed}}, "merged": {Proposal: Proposal{State: v1alpha1.ProposalMerged}},
		"refused": {Proposal{State: v1alpha1.ProposalRefused}, true}, "closed, repair": {Proposal{State: v1alpha1.ProposalClosed, RepairClosed: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []v1alpha1.DriftPolicy{v1alpha1.DriftReport, v1alpha1.DriftRepair} {
				t.Run(string(policy), func(t *testing.T) {
					assert.Equal(t, c.whenSeen, c.Repairs(policy, true, true))
					assert.False(t, c.Repairs(policy, true, false))
					assert.Equal(t, policy == v1alpha1.DriftRepair, c.Repairs(policy, false, false))
				})
			}
		})
	}
}
