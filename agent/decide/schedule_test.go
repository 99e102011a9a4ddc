package decide

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

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
		"only the branch":                    {func(_ *Schedule, p *ProposalSituation) { p.HasPullRequest = false }, Move{Do: Show}},
		"ends":                               {func(_ *Schedule, p *ProposalSituation) { p.Ends, p.InGit = v1alpha1.ProposalWithdrawn, true }, end(v1alpha1.ProposalWithdrawn)},
		"ends, failed":                       {failed(minute, func(_ *Schedule, p *ProposalSituation) { p.Ends = v1alpha1.ProposalWithdrawn }), Move{Do: Show, At: at(minute)}},
		"ends, failed before":                {failed(0, func(_ *Schedule, p *ProposalSituation) { p.Ends = v1alpha1.ProposalClosed }), end(v1alpha1.ProposalClosed)},
		"the gateway has the merge":          {func(_ *Schedule, p *ProposalSituation) { p.InGit, p.Standby, p.Renew = true, true, true }, end(v1alpha1.ProposalMerged)},
		"standby, the files equal git":       {func(_ *Schedule, p *ProposalSituation) { p.Standby, p.Changed, p.Renew = true, false, true }, Move{Do: Show, Poll: true}},
		"standby, merged":                    {func(_ *Schedule, p *ProposalSituation) { p.Standby, p.Merged = true, true }, Move{Do: Show}},
		"not looked at":                      {unread, Move{Do: Look}},
		"not looked at, ends":                {func(s *Schedule, p *ProposalSituation) { unread(s, p); p.Ends = v1alpha1.ProposalMerged }, end(v1alpha1.ProposalMerged)},
		"merged, the gateway has it":         {func(_ *Schedule, p *ProposalSituation) { p.Merged, p.Changed, p.Files = true, false, 0 }, end(v1alpha1.ProposalMerged)},
		"merged with a change of a reviewer": {changed(func(p *ProposalSituation) { p.Merged = true }), end(v1alpha1.ProposalMerged)},
		"merged, not on the gateway":         {func(_ *Schedule, p *ProposalSituation) { p.Merged = true }, Move{Do: Show}},
		"merged, a part was undone":          {func(_ *Schedule, p *ProposalSituation) { p.Merged, p.Open, p.Pushed = true, false, false }, Move{Do: Show}},
		"refused":                            {changed(func(p *ProposalSituation) { p.Refused = true }), Move{Do: Refuse, Poll: true}},
		"refused, no proposal":               {changed(func(p *ProposalSituation) { p.Refused, p.Active = true, false }), Move{Do: Refuse}},
		"undone by a sync":                   {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Replaced = false, 0, true }, Move{Do: Show, Poll: true}},
		"undone, of another author":          {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Foreign = false, 0, true }, Move{Do: Show, Poll: true}},
		"undone, no proposal":                {func(_ *Schedule, p *ProposalSituation) { p.Changed, p.Files, p.Active = false, 0, false }, Move{Do: Show}},
		"closed":                             {changed(func(p *ProposalSituation) { p.Closed, p.Active = true, false }), Move{Do: Withhold}},
		"another author":                     {changed(func(p *ProposalSituation) { p.Foreign = true }), Move{Do: Show, Poll: true}},
		"changed":                            {changed(func(*ProposalSituation) {}), Move{Do: Push}},
		"new":                                {changed(func(p *ProposalSituation) { p.Active, p.HasPullRequest = false, false }), Move{Do: Push}},
		"pushed, no pull request":            {func(_ *Schedule, p *ProposalSituation) { p.Open, p.HasPullRequest = false, false }, Move{Do: Push}},
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
			p := ProposalSituation{Now: day, Debounce: debounce, Active: true, HasPullRequest: true, Changed: true, Looked: true, Read: true, Files: 1, Changes: changes,
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
	assert.Len(t, RecentPushes(slices.Repeat([]time.Time{day}, 3), day.Add(time.Minute)), 3)
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
