package decide

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// holdFor returns a Hold with this reason and some message.
func holdFor(reason v1alpha1.Reason) *Hold { return &Hold{reason, "why"} }

func inForce(id plan.ID) func(*Situation) {
	return func(s *Situation) { s.InForce = InForce{true, id} }
}

func obstacle(handsOff, short bool) func(*Situation) {
	return func(s *Situation) {
		s.Obstacle = &Obstacle{*holdFor(v1alpha1.ReasonWaitingForLead), handsOff, short}
	}
}

func paused(s *Situation)   { s.Paused = true }
func invalid(s *Situation)  { s.Invalid = holdFor(v1alpha1.ReasonProfilesInvalid) }
func planned(s *Situation)  { s.Planned = holdFor(v1alpha1.ReasonDryRun) }
func noCommit(s *Situation) { s.Target = plan.ID{} }

// lost is the situation of a new volume: the gateway had commit one.
func lost(s *Situation) {
	s.Delivered, s.Disk, s.Whole, s.NewVolume, s.Incomplete = Origin{Commit: one}, one, false, true, true
}

func TestNext(t *testing.T) {
	gs, open, closed := plant(), 2, 1
	for name, c := range map[string]struct {
		s      Situation
		do     Action
		flags  string // "hands off", "pauses", "of target", "rollback", "refill", "planned"
		to     plan.ID
		reason v1alpha1.Reason // of the hold; "" for none
	}{
		"the target cannot be read":                               {at(gs, open, obstacle(false, false)), Leave, "", plan.ID{}, "WaitingForLead"},
		"the target cannot be read, and it pauses":                {at(gs, open, obstacle(false, false), paused), Leave, "pauses ", plan.ID{}, "WaitingForLead"},
		"the target is gone":                                      {at(gs, open, obstacle(true, false), inForce(one)), Leave, "hands off ", plan.ID{}, "WaitingForLead"},
		"the spec cannot be read":                                 {at(gs, open, obstacle(false, false), inForce(one)), Leave, "", plan.ID{}, "WaitingForLead"},
		"the spec cannot be read for a moment":                    {at(gs, open, obstacle(false, true), inForce(one)), Leave, "", plan.ID{}, ""},
		"the spec cannot be read for a moment, no order in force": {at(gs, open, obstacle(false, true)), Leave, "", plan.ID{}, "WaitingForLead"},
		"nothing holds it":                                        {at(gs, open, inForce(one)), Follow, "", plan.ID{}, ""},
		"nothing holds it, paused":                                {at(gs, open, inForce(one), paused), Follow, "", plan.ID{}, ""}, // the order says so itself
		"its step is closed":                                      {at(gs, closed, inForce(one)), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"its step is closed, paused":                              {at(gs, closed, inForce(one), paused), KeepOnDisk, "pauses of target ", plan.ID{}, "Paused"},
		"its step is closed, and invalid settings":                {at(gs, closed, invalid), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a first start while its step is closed":                  {at(gs, closed, fresh), Follow, "", one, ""},
		"invalid settings":                                        {at(gs, open, inForce(one), invalid), Leave, "pauses of target ", plan.ID{}, "ProfilesInvalid"},
		"invalid settings, no commit":                             {at(gs, open, noCommit, invalid), Leave, "pauses of target ", plan.ID{}, "ProfilesInvalid"},
		"a dry run is to be made":                                 {at(plant(dryRunBefore), 0), DryRun, "", plan.ID{}, ""},
		"a dry run with invalid settings":                         {at(plant(dryRunBefore), 0, invalid), Leave, "pauses of target ", plan.ID{}, "ProfilesInvalid"},
		"the dry run was made":                                    {at(plant(dryRunBefore), 0, planned), KeepOnDisk, "pauses of target planned ", plan.ID{}, "DryRun"},
		"the dry run was made, paused":                            {at(plant(dryRunBefore), 0, planned, paused), KeepOnDisk, "pauses of target planned ", plan.ID{}, "Paused"},
		"the dry run was made, and its step opened":               {at(plant(dryRunBefore), open, planned), Follow, "", plan.ID{}, ""},
		"the rollout went back":                                   {at(gs, open, back, has), Follow, "rollback ", one, ""},
		"no commit yet":                                           {at(gs, open, noCommit), Follow, "", plan.ID{}, "WaitingForLead"},
		"no commit yet, and an order without":                     {at(gs, open, noCommit, inForce(plan.ID{})), Follow, "", plan.ID{}, "WaitingForLead"},
		"no commit any more":                                      {at(gs, open, noCommit, inForce(one)), Leave, "pauses ", plan.ID{}, "WaitingForLead"},
		"the ref cannot be resolved":                              {at(gs, open, noCommit, func(s *Situation) { s.Unresolved = holdFor(v1alpha1.ReasonRefNotFound) }), Follow, "", plan.ID{}, "RefNotFound"},
		"a new volume":                                            {at(gs, open, lost), Follow, "of target refill ", one, ""},
		"a new volume while its step is closed":                   {at(gs, closed, lost), Follow, "of target refill ", one, ""},
		"a new volume that has all files":                         {at(gs, closed, lost, func(s *Situation) { s.Incomplete = false }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a new volume, the files cannot be written":               {at(gs, closed, lost, func(s *Situation) { s.GaveUp = true }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a running gateway that lacks files":                      {at(gs, closed, lost, func(s *Situation) { s.NewVolume = false }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a new volume that had the target":                        {at(gs, open, lost, func(s *Situation) { s.Target = one }), Follow, "", plan.ID{}, ""},
		"a new volume, no commit yet":                             {at(gs, open, lost, noCommit), Follow, "", plan.ID{}, "WaitingForLead"},
		"a new volume and invalid settings":                       {at(gs, open, lost, invalid), Leave, "pauses of target refill ", one, "ProfilesInvalid"},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.Ref = "main"
			n := Next(c.s)
			assert.Equal(t, c.do, n.Do)
			flags := ""
			for _, f := range []struct {
				name string
				set  bool
			}{{"hands off", n.DoNotTouch}, {"pauses", n.ApplyPause}, {"of target", n.ReportTarget}, {"rollback", n.Rollback}, {"refill", n.Refill}, {"planned", n.Planned}} {
				if f.set {
					flags += f.name + " "
				}
			}
			assert.Equal(t, c.flags, flags)
			var to plan.ID
			if n.To != nil {
				to = n.To.Commit
				assert.Equal(t, "main", n.To.Ref)
			}
			assert.Equal(t, c.to, to)
			var reason v1alpha1.Reason
			if n.Held != nil {
				reason = n.Held.Reason
				assert.NotEmpty(t, n.Held.Message)
			}
			assert.Equal(t, c.reason, reason)
		})
	}
}

// Whatever the situation is, a gateway whose stage lacks an approval never follows the target.
func TestNextNeedsApproval(t *testing.T) {
	gs := plant(needsApproval, withoutHistory)
	changes := []func(*Situation){paused, invalid, planned, inForce(one), inForce(two), obstacle(false, true), lost, partly, failed, back, moved, forged}
	for bits := range 1 << len(changes) {
		var on []func(*Situation)
		for i, change := range changes {
			if bits&(1<<i) != 0 {
				on = append(on, change)
			}
		}
		s := at(gs, 3, on...) // all steps are open
		if n := Next(s); n.Do == Follow {
			assert.True(t, n.To != nil && n.To.Commit == one && n.Refill, "%+v of %+v", n, s)
		}
	}
}

func TestClosed(t *testing.T) {
	for name, c := range map[string]struct {
		Closed
		lapses, force, restoreOnly bool
	}{
		"no order":                             {Closed{Disk: one}, false, false, false},
		"the order has run":                    {Closed{Order: one, Disk: one}, false, true, false},
		"the order would bring another commit": {Closed{Order: two, Disk: one}, true, false, false},
		"a requested rollback":                 {Closed{Order: two, Disk: one, Requested: true}, false, false, false},
		"a restore of another commit":          {Closed{Order: two, Disk: one, Restores: true}, false, false, true},
		"a restore of the commit on the disk":  {Closed{Order: one, Disk: one, Restores: true}, false, false, false},
		"a restore and a requested rollback":   {Closed{Order: two, Disk: one, Requested: true, Restores: true}, false, false, false},
		"a first start":                        {Closed{Order: two, Unsynced: true}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.lapses, c.StopsOrder())
			assert.Equal(t, c.force, c.Force())
			assert.Equal(t, c.restoreOnly, c.RestoreOnly())
		})
	}
}

func TestPause(t *testing.T) {
	first, other, later := Pause{Owner: "a", Generation: 1}, Pause{Owner: "b", Generation: 1}, Pause{Owner: "a", Generation: 2}
	p, apply := Pause{}.Apply(first, false)
	assert.False(t, apply, "nothing is paused")
	p, apply = p.Apply(first, true)
	assert.True(t, apply)
	for _, target := range []Pause{other, later} {
		_, apply = p.Apply(target, false)
		assert.False(t, apply, "the new spec may be the fix")
	}
	_, apply = p.Apply(first, false)
	assert.True(t, apply)
	p, _ = p.Apply(later, true)
	_, apply = p.Apply(later, false)
	assert.True(t, apply)
	p, _ = Pause{}.Apply(Pause{}, true) // an unresolved target without an owner
	_, apply = p.Apply(Pause{}, false)
	assert.True(t, apply)
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
