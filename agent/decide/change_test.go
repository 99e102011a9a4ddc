package decide

import (
	"reflect"
	"slices"
	"strings"
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

// each calls f with all deliveries.
func each(f func(Delivery)) {
	fields := reflect.TypeFor[Delivery]().NumField()
	for bits := range 1 << fields {
		var d Delivery
		for i := range fields {
			reflect.ValueOf(&d).Elem().Field(i).SetBool(bits&(1<<i) != 0)
		}
		f(d)
	}
}

// What lets a delivery through a gate, and what alone does not.
func TestExemptions(t *testing.T) {
	const window, review = "window", "review"
	for field, want := range map[string][]string{
		"First": {window, review}, "Rollback": {window, review}, "DryRun": {window}, "Repair": {window}, "Approved": {window}, "Forced": {window}, "AccessChanged": {window},
		"SameCommit": nil, "SameRules": nil, "LacksFiles": nil, "Recorded": nil,
		"LacksFiles, Recorded": {window}, "SameCommit, SameRules": {review}, "SameCommit, LacksFiles": {review}, "SameCommit, Recorded": nil,
	} {
		t.Run(field, func(t *testing.T) {
			d := with(field)
			assert.Equal(t, !slices.Contains(want, window), d.WaitsForWindow(), "maintenance window")
			assert.Equal(t, !slices.Contains(want, review), d.NeedsReview(), "validation webhook")
		})
	}
	assert.True(t, Delivery{}.WaitsForWindow())
	assert.True(t, Delivery{}.NeedsReview())
}

// with returns a delivery with these fields set.
func with(fields string) (d Delivery) {
	for i := range reflect.TypeFor[Delivery]().NumField() {
		name := reflect.TypeFor[Delivery]().Field(i).Name
		if slices.Contains(strings.Split(fields, ", "), name) {
			reflect.ValueOf(&d).Elem().Field(i).SetBool(true)
		}
	}
	return d
}

// More facts about a delivery never close a gate that fewer open.
func TestExemptionsAdd(t *testing.T) {
	each(func(d Delivery) {
		for i := range reflect.TypeFor[Delivery]().NumField() {
			more := d
			reflect.ValueOf(&more).Elem().Field(i).SetBool(true)
			assert.False(t, !d.WaitsForWindow() && more.WaitsForWindow(), "%+v", more)
			assert.False(t, !d.NeedsReview() && more.NeedsReview(), "%+v", more)
		}
	})
}

func TestAutoRollbackDue(t *testing.T) {
	const scan, project, config = v1alpha1.TriggerScanFailure, v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError
	all := []v1alpha1.AutoRollbackTrigger{scan, project, config}
	fails := func(symptoms ...v1alpha1.AutoRollbackTrigger) LoadFailure {
		return LoadFailure{Target: two, Symptoms: symptoms, Triggers: all, Known: true, Running: true}
	}
	but := func(change func(*LoadFailure)) LoadFailure {
		l := fails(project)
		change(&l)
		return l
	}
	type at struct {
		second int
		LoadFailure
	}
	for name, c := range map[string]struct {
		failures []at
		due      v1alpha1.AutoRollbackTrigger // after the last of them; the ones before cause nothing
		retry    bool                         // a retry is asked for
	}{
		"first failure":                          {[]at{{0, fails(project)}}, "", true},
		"fails for less than half a minute":      {[]at{{0, fails(project)}, {29, fails(project)}}, "", true},
		"fails for half a minute":                {[]at{{0, fails(project)}, {30, fails(project)}}, project, false},
		"three failed scans":                     {[]at{{0, fails(scan)}, {15, fails(scan)}, {30, fails(scan)}}, scan, false},
		"two failed scans":                       {[]at{{0, fails(scan)}, {60, fails(scan)}}, "", true},
		"three failed scans, one long ago":       {[]at{{0, fails(scan)}, {60, fails(scan)}, {121, fails(scan)}}, "", true},
		"the last three of four scans":           {[]at{{0, fails(scan)}, {60, fails(scan)}, {121, fails(scan)}, {130, fails(scan)}}, scan, false},
		"three failed scans within seconds":      {[]at{{0, fails(scan)}, {1, fails(scan)}, {2, fails(scan)}}, "", true},
		"another commit":                         {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Target = one })}}, "", true},
		"the clock was set back":                 {[]at{{60, fails(project)}, {0, fails(project)}}, "", true},
		"nothing matches in between":             {[]at{{0, fails(project)}, {15, fails()}, {30, fails(project)}}, "", true},
		"a trigger that the spec does not name":  {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Triggers = all[:1] })}}, "", false},
		"the first symptom that the spec names":  {[]at{{0, fails(project, config)}, {60, but(func(l *LoadFailure) { l.Symptoms, l.Triggers = all[1:], all[2:] })}}, config, false},
		"the baseline is not known":              {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Known = false })}}, "", false},
		"an operator requested the rollback":     {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Requested = true })}}, "", false},
		"git has not been asked yet":             {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Resumes = true })}}, "", false},
		"a standby node":                         {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Standby = true })}}, "", false},
		"the gateway starts":                     {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Running = false })}}, "", false},
		"the gateway started in between":         {[]at{{0, fails(project)}, {30, but(func(l *LoadFailure) { l.Running = false })}, {60, fails(project)}}, "", true},
		"a failed scan and a project in between": {[]at{{0, fails(scan)}, {15, fails(project)}, {30, fails(scan)}, {45, fails(scan)}}, scan, false},
	} {
		t.Run(name, func(t *testing.T) {
			var f Failures
			for i, l := range c.failures {
				l.Now = day.Add(time.Duration(l.second) * time.Second)
				before := f
				var due v1alpha1.AutoRollbackTrigger
				var retry time.Time
				f, due, retry = f.Add(l.LoadFailure)
				if i < len(c.failures)-1 {
					assert.Empty(t, due, "second %d", l.second)
					continue
				}
				assert.Equal(t, c.due, due)
				assert.Equal(t, c.retry, retry.After(l.Now))
				again, _, _ := before.Add(l.LoadFailure)
				assert.Equal(t, f, again, "Add must not change its receiver")
			}
		})
	}
}
