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

// Each element of asks is one call of Wait.Blocks, a minute after the one before.
func TestWaitBlocks(t *testing.T) {
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
		"do not touch":     func(d *Drift) { d.DoNotTouch = true },
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

// What exempts a delivery from the maintenance windows (window) and from the validation webhook (review).
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

// A delivery that is exempt stays exempt if another field is set.
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
		return LoadFailure{Target: two, Symptoms: symptoms, Triggers: all, HasBaseline: true, Running: true}
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
		"three scans that hang":                  {[]at{{120, fails(scan)}, {249, fails(scan)}, {378, fails(scan)}}, scan, false},
		"another failure between failed scans":   {[]at{{0, fails(scan)}, {60, fails(scan)}, {90, fails()}, {120, fails(scan)}}, "", true},
		"three failed scans within seconds":      {[]at{{0, fails(scan)}, {1, fails(scan)}, {2, fails(scan)}}, "", true},
		"another commit":                         {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Target = one })}}, "", true},
		"the clock was set back":                 {[]at{{60, fails(project)}, {0, fails(project)}}, "", true},
		"nothing matches in between":             {[]at{{0, fails(project)}, {15, fails()}, {30, fails(project)}}, "", true},
		"a trigger that the spec does not name":  {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Triggers = all[:1] })}}, "", false},
		"the first symptom that the spec names":  {[]at{{0, fails(project, config)}, {60, but(func(l *LoadFailure) { l.Symptoms, l.Triggers = all[1:], all[2:] })}}, config, false},
		"there is no baseline":                   {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.HasBaseline = false })}}, "", false},
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

// TestSchedule: what happens next to a proposal. Each case changes an open proposal whose pull request shows the changes.
func TestSchedule(t *testing.T) {
	const debounce, minute, changes = 30 * time.Second, time.Minute, "the changes"
	at := func(d time.Duration) time.Time { return day.Add(d) }
	end := func(state v1alpha1.ProposalState) Move { return Move{Do: End, State: state} }
	changed := func(change func(p *ProposalSituation)) func(*Schedule, *ProposalSituation) {
		return func(_ *Schedule, p *ProposalSituation) {
			p.Pushed, p.Open, p.Covered = false, false, false
			change(p)
		}
	}
	failed := func(in time.Duration, change func(s *Schedule, p *ProposalSituation)) func(*Schedule, *ProposalSituation) {
		return func(s *Schedule, p *ProposalSituation) {
			*s = s.Failed(at(in))
			change(s, p)
		}
	}
	unchanged := func(*Schedule, *ProposalSituation) {}
	unread := func(_ *Schedule, p *ProposalSituation) { p.Looked, p.Read = false, false }
	pushes := func(n int, first time.Duration) []time.Time {
		var list []time.Time
		for i := range n {
			list = append(list, at(first+time.Duration(i)*minute))
		}
		return list
	}
	for name, c := range map[string]struct {
		change func(s *Schedule, p *ProposalSituation)
		want   Move
	}{
		"open":                               {unchanged, Move{Do: Show, Poll: true}},
		"open, polled":                       {func(s *Schedule, _ *ProposalSituation) { *s = s.Succeeded(at(minute)) }, Move{Do: Show, At: at(minute)}},
		"open, the poll failed":              {failed(minute, unchanged), Move{Do: Show, At: at(minute)}},
		"only the branch":                    {func(_ *Schedule, p *ProposalSituation) { p.Published = false }, Move{Do: Show}},
		"ends":                               {func(_ *Schedule, p *ProposalSituation) { p.Ends, p.InGit = v1alpha1.ProposalWithdrawn, true }, end(v1alpha1.ProposalWithdrawn)},
		"ends, failed":                       {failed(minute, func(_ *Schedule, p *ProposalSituation) { p.Ends = v1alpha1.ProposalWithdrawn }), Move{Do: Show, At: at(minute)}},
		"ends, failed before":                {failed(0, func(_ *Schedule, p *ProposalSituation) { p.Ends = v1alpha1.ProposalClosed }), end(v1alpha1.ProposalClosed)},
		"the gateway has the merge":          {func(_ *Schedule, p *ProposalSituation) { p.InGit, p.Standby, p.Renew = true, true, true }, end(v1alpha1.ProposalMerged)},
		"standby, the files equal git":       {func(_ *Schedule, p *ProposalSituation) { p.Standby, p.Changed, p.Renew = true, false, true }, Move{Do: Show, Poll: true}},
		"standby, merged":                    {func(_ *Schedule, p *ProposalSituation) { p.Standby, p.Merged = true, true }, Move{Do: Show, Poll: true}},
		"not looked at":                      {unread, Move{Do: Look}},
		"not looked at, ends":                {func(s *Schedule, p *ProposalSituation) { unread(s, p); p.Ends = v1alpha1.ProposalMerged }, end(v1alpha1.ProposalMerged)},
		"merged, the gateway has it":         {func(_ *Schedule, p *ProposalSituation) { p.Merged, p.Changed, p.Files = true, false, 0 }, end(v1alpha1.ProposalMerged)},
		"merged with a change of a reviewer": {changed(func(p *ProposalSituation) { p.Merged = true }), end(v1alpha1.ProposalMerged)},
		"merged, not on the gateway":         {func(_ *Schedule, p *ProposalSituation) { p.Merged = true }, Move{Do: Show, Poll: true}},
		"merged, a part was undone":          {func(_ *Schedule, p *ProposalSituation) { p.Merged, p.Open, p.Pushed = true, false, false }, Move{Do: Show, Poll: true}},
		"refused":                            {changed(func(p *ProposalSituation) { p.Refused = true }), Move{Do: Refuse, Poll: true}},
		"refused, no proposal":               {changed(func(p *ProposalSituation) { p.Refused, p.Active = true, false }), Move{Do: Refuse}},
		"undone by a sync":                   {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Replaced = false, 0, true }, Move{Do: Show, Poll: true}},
		"undone, of another author":          {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Foreign = false, 0, true }, Move{Do: Show, Poll: true}},
		"undone, no proposal":                {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Active = false, 0, false }, Move{Do: Show}},
		"closed":                             {changed(func(p *ProposalSituation) { p.Closed, p.Active = true, false }), Move{Do: Withhold}},
		"another author":                     {changed(func(p *ProposalSituation) { p.Foreign = true }), Move{Do: Show, Poll: true}},
		"changed":                            {changed(func(*ProposalSituation) {}), Move{Do: Push}},
		"new":                                {changed(func(p *ProposalSituation) { p.Active, p.Published = false, false }), Move{Do: Push}},
		"pushed, no pull request":            {func(_ *Schedule, p *ProposalSituation) { p.Open, p.Published = false, false }, Move{Do: Push}},
		"failed":                             {failed(minute, changed(func(*ProposalSituation) {})), Move{Do: Retry, At: at(minute)}},
		"failed before":                      {failed(0, changed(func(*ProposalSituation) {})), Move{Do: Push}},
		"declined": {failed(minute, func(s *Schedule, p *ProposalSituation) {
			*s, p.Pushed, p.Open = s.Declined(changes), false, false
		}), Move{Do: Retry, At: at(minute)}},
		"others were declined": {failed(minute, func(s *Schedule, p *ProposalSituation) {
			*s, p.Pushed, p.Open = s.Declined("others"), false, false
		}), Move{Do: Push}},
		"five pushes":          {changed(func(p *ProposalSituation) { p.Pushes = pushes(5, -10*minute) }), Move{Do: Push}},
		"six pushes":           {changed(func(p *ProposalSituation) { p.Pushes = pushes(6, -10*minute) }), Move{Do: Throttle, At: at(50 * minute)}},
		"eight pushes":         {changed(func(p *ProposalSituation) { p.Pushes = pushes(8, -10*minute) }), Move{Do: Throttle, At: at(52 * minute)}},
		"one is an hour old":   {changed(func(p *ProposalSituation) { p.Pushes = pushes(6, -60*minute) }), Move{Do: Push}},
		"pushes in the future": {changed(func(p *ProposalSituation) { p.Pushes = pushes(6, minute) }), Move{Do: Push}},
		"six pushes, and no pull request": {func(_ *Schedule, p *ProposalSituation) {
			p.Open, p.Pushes = false, pushes(6, -10*minute)
		}, Move{Do: Push}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Schedule{}
			p := ProposalSituation{Now: day, Debounce: debounce, Active: true, Published: true, Changed: true, Looked: true, Read: true, Files: 1, Changes: changes,
				Covered: true, Pushed: true, Open: true}
			c.change(&s, &p)
			assert.Equal(t, c.want, s.Move(p))
		})
	}
	t.Run("undone, and renewed: the pull request says why it is closed", func(t *testing.T) {
		p := ProposalSituation{Now: day, Active: true}
		m := Schedule{}.Move(p)
		assert.Equal(t, End, m.Do)
		assert.Contains(t, m.Comment, "undone")
		p.Renew = true
		m = Schedule{}.Move(p)
		assert.Equal(t, Renew, m.Do)
		assert.Contains(t, m.Comment, "proposed again")
		assert.Equal(t, v1alpha1.ProposalWithdrawn, m.State)
	})
	t.Run("an attempt that succeeds", func(t *testing.T) {
		s := Schedule{}.Failed(at(minute)).Failed(at(2 * minute)).Declined(changes)
		assert.Equal(t, 2, s.Failures)
		assert.Equal(t, at(2*minute), s.Attempt())
		assert.Equal(t, Schedule{poll: at(minute)}, s.Succeeded(at(minute)))
	})
	t.Run("pushes at the same time all count", func(t *testing.T) {
		assert.Len(t, RecentPushes(slices.Repeat([]time.Time{day}, 3), day.Add(time.Minute)), 3)
	})
}

// TestDebounce: looks at the changed files, each a minute after the one before.
func TestDebounce(t *testing.T) {
	const minute, debounce = time.Minute, 90 * time.Second
	read, settle := time.Time{}, func(d time.Duration) time.Time { return day.Add(d) } // when to ask again
	type look struct {
		files string
		saved time.Duration // before the look; 0 if not known
		want  time.Time
	}
	saves := func(n int, want time.Time) []look {
		var list []look
		for i := range n {
			list = append(list, look{files: string(rune('a' + i)), want: settle(min(time.Duration(i)*minute+debounce, 10*minute))})
		}
		return append(list, look{files: "z", want: want})
	}
	for name, looks := range map[string][]look{
		"one save":               {{"a", 0, settle(debounce)}, {"a", 0, settle(debounce)}, {"a", 0, read}},
		"two saves":              {{"a", 0, settle(debounce)}, {"b", 0, settle(minute + debounce)}, {"b", 0, settle(minute + debounce)}, {"b", 0, read}},
		"saved before the look":  {{"a", minute, settle(debounce - minute)}, {"a", 0, read}},
		"saved long ago":         {{"a", 2 * minute, read}},
		"saved in the future":    {{"a", -minute, settle(debounce)}},
		"an event for nothing":   {{"", minute, read}, {"a", 0, settle(minute + debounce)}},
		"saves for ten minutes":  saves(10, read),
		"saves for nine minutes": saves(9, settle(10*minute)),
	} {
		t.Run(name, func(t *testing.T) {
			s, now := Schedule{}, day
			for i, l := range looks {
				if l.saved != 0 {
					s = s.Event(now.Add(-l.saved))
				}
				s, _ = s.Compared(now, false)
				s = s.LookedAt(l.files, now)
				want := Move{Do: Settle, At: l.want}
				if l.want.IsZero() {
					want.Do = Read
				}
				assert.Equal(t, want, s.Move(ProposalSituation{Now: now, Debounce: debounce, Changed: true, Looked: true}), "minute %d", i)
				now = now.Add(minute)
			}
		})
	}
	t.Run("from the last event, if it was not compared yet", func(t *testing.T) {
		s, _ := Schedule{}.Event(day).Compared(day.Add(minute), false)
		s = s.LookedAt("a", day.Add(minute)).Event(day.Add(2 * minute))
		assert.Equal(t, settle(2*minute), s.LookedAt("b", day.Add(3*minute)).stable)
	})
	t.Run("on another commit, or without content, at once", func(t *testing.T) {
		s := Schedule{}.LookedAt("a", day).WasRead()
		assert.Equal(t, Move{Do: Read}, s.Move(ProposalSituation{Now: day, Debounce: debounce, Changed: true, Looked: true}))
	})
	t.Run("from the beginning, if files change meanwhile or are undone", func(t *testing.T) {
		s := Schedule{}.LookedAt("a", day)
		for _, s := range []Schedule{s.ChangedWhileRead(), s.ChangesGone()} { // sequence: each is saved again
			assert.Equal(t, Schedule{files: "a", stable: day.Add(minute), first: s.LookedAt("a", day.Add(minute)).first}, s.LookedAt("a", day.Add(minute)))
		}
	})
}

// TestLookForNewFiles: comparisons of the owned files, each a minute after the one before.
func TestLookForNewFiles(t *testing.T) {
	every := func(n int) map[int]bool {
		walks := map[int]bool{}
		for i := 0; i < 25; i += n {
			walks[i] = true
		}
		return walks
	}
	for name, c := range map[string]struct {
		before func(minute int, s Schedule) Schedule
		fails  bool
		walks  map[int]bool
	}{
		"at first, and then every tenth time":   {walks: every(10)},
		"after each event":                      {before: func(_ int, s Schedule) Schedule { return s.Event(day) }, walks: every(1)},
		"after a sync was held by unseen files": {before: func(_ int, s Schedule) Schedule { return s.Unwalked() }, walks: every(1)},
		"again after a failure":                 {fails: true, walks: every(1)},
		"after the node was a standby node": {before: func(minute int, s Schedule) Schedule {
			if minute%5 == 0 {
				s, _ = s.Compared(day, true)
			}
			return s
		}, walks: every(5)},
	} {
		t.Run(name, func(t *testing.T) {
			s := Schedule{}
			for i := range 25 { // sequence: of comparisons
				if c.before != nil {
					s = c.before(i, s)
				}
				var walk bool
				s, walk = s.Compared(day.Add(time.Duration(i)*time.Minute), false)
				assert.Equal(t, c.walks[i], walk, "minute %d", i)
				if walk && !c.fails {
					s = s.Walked()
				}
				s, walk = s.Compared(day.Add(time.Duration(i)*time.Minute), false)
				assert.False(t, walk, "the comparison is known")
			}
		})
	}
}

// TestOverwrote: only a comparison that ended after a sync shows what the sync has replaced.
func TestOverwrote(t *testing.T) {
	s, _ := Schedule{}.Wrote(day).Compared(day.Add(-time.Second), false)
	assert.False(t, s.Overwrote)
	s, _ = s.Compared(day, false)
	assert.True(t, s.Overwrote)
	s, _ = s.Wrote(day.Add(time.Minute)).Compared(day, false)
	assert.True(t, s.Overwrote, "no caller has handled it")
	s.Overwrote = false
	s, _ = s.Compared(day, false)
	assert.False(t, s.Overwrote)
	s, _ = s.Compared(day.Add(time.Minute), true)
	assert.True(t, s.Overwrote, "the second sync, also on a standby node")
}

func TestRolloutRollback(t *testing.T) {
	held, ofTarget := RolloutRollback{Synced: true, To: one, Aborted: two}.Report()
	assert.True(t, ofTarget)
	assert.Equal(t, v1alpha1.ReasonRolledBack, held.Reason)
	assert.Contains(t, held.Message, "the rollout of "+two.Short()+" failed, and the gateway went back to "+one.Short())
	for _, failed := range []bool{false, true} {
		held, ofTarget = RolloutRollback{Failed: failed}.Report()
		assert.Nil(t, held)
		assert.Equal(t, failed, ofTarget)
	}
}
