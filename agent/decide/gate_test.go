package decide

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

var (
	one, two = plan.ID{1}, plan.ID{2}
	from     = Origin{"main", "refs/heads/main", one}
)

// plant returns a GatewaySync with stages for dev-* and line-*, in steps 1 and 2, and one step for the others. Commit one ran everywhere.
func plant(change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "plant", Annotations: map[string]string{}}}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"dev-*"}}, {Name: "line", Gateways: []string{"line-*"}}}}
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: one.String()}
	for _, c := range change {
		c(gs)
	}
	return gs
}

func needsApproval(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment.Stages[1].RequireApproval = true }

func approved(stage string, commit plan.ID) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		gs.Annotations[v1alpha1.AnnotationApproved] = stage + "@" + commit.String()
	}
}

func dryRunBefore(gs *v1alpha1.GatewaySync) {
	gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: true}
}

func withoutHistory(gs *v1alpha1.GatewaySync) { gs.Status = v1alpha1.GatewaySyncStatus{} }

// at is a situation of line-1, in step 2 of 3, which runs commit one. The target is commit two.
func at(gs *v1alpha1.GatewaySync, open int, change ...func(*Situation)) Situation {
	s := Situation{GatewaySync: gs, Gateway: "line-1", Pod: "line-1-0", Target: two, Disk: one, Whole: true,
		Rollout: Rollout{On: true, Steps: 3, Open: open, Done: open == 3, From: from}}
	for _, c := range change {
		c(&s)
	}
	return s
}

func fresh(s *Situation)  { s.Disk, s.Whole, s.Unsynced = plan.ID{}, false, true }
func has(s *Situation)    { s.Disk, s.Whole = two, true }
func partly(s *Situation) { s.Disk, s.Whole = two, false }
func failed(s *Situation) { s.Rollout.Failed = true }
func back(s *Situation)   { s.Rollout.Rollback, s.Rollout.Failed = true, true }
func moved(s *Situation)  { s.Moved = "main moved" }
func forged(s *Situation) { s.Rollout = Rollout{} }

func TestGate(t *testing.T) {
	const follow, dry, goesBack = "follow", "dry run", "back"
	for name, c := range map[string]struct {
		s    Situation
		want string // follow, dry run, back, or the reason of the hold
		ask  bool   // whether a newer GatewaySync may change the answer
	}{
		"its step is open":                                 {at(plant(), 2), follow, false},
		"its step is closed":                               {at(plant(), 1), "GateClosed", false},
		"its step is closed, and it has the commit":        {at(plant(), 1, has), "GateClosed", false},
		"all steps are open":                               {at(plant(), 3), follow, false},
		"no rollout":                                       {at(plant(), 0, forged), follow, false},
		"no stages":                                        {at(plant(func(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment = nil }), 0), follow, false},
		"no commit yet":                                    {at(plant(), 1, func(s *Situation) { s.Target = plan.ID{} }), follow, false},
		"other steps than the lead":                        {at(plant(), 1, func(s *Situation) { s.Rollout.Steps = 4 }), "WaitingForLead", false},
		"other steps than the lead, and all done":          {at(plant(), 3, func(s *Situation) { s.Rollout.Steps = 4 }), follow, false},
		"first start, its step is open":                    {at(plant(), 2, fresh), follow, false},
		"first start, its step is closed":                  {at(plant(), 1, fresh), goesBack, false},
		"first start, and nothing ran everywhere":          {at(plant(withoutHistory), 1, fresh), follow, true},
		"first start of a fleet":                           {at(plant(withoutHistory), 1, fresh, func(s *Situation) { s.Rollout.From = Origin{} }), follow, false},
		"first start after an abort":                       {at(plant(), 2, fresh, failed), goesBack, false},
		"first start, an approval is missing":              {at(plant(needsApproval), 1, fresh), goesBack, false},
		"the rollout went back":                            {at(plant(), 2, back, has), goesBack, false},
		"the rollout went back before its step":            {at(plant(), 1, back), "GateClosed", false},
		"the rollout went back to what the status lacks":   {at(plant(withoutHistory), 2, back, has), "WaitingForLead", true},
		"the rollout was aborted":                          {at(plant(), 2, failed), "GateClosed", false},
		"the rollout was aborted, and it has the commit":   {at(plant(), 2, failed, has), follow, false},
		"the rollout was aborted and is done":              {at(plant(), 3, failed), follow, false},
		"an approval is missing":                           {at(plant(needsApproval), 2), "ApprovalNeeded", true},
		"an approval is missing, all steps are open":       {at(plant(needsApproval), 3), "ApprovalNeeded", true},
		"an approval is missing, and no rollout":           {at(plant(needsApproval), 0, forged), "ApprovalNeeded", true},
		"another stage is approved":                        {at(plant(needsApproval, approved("dev", two)), 2), "ApprovalNeeded", true},
		"another commit is approved":                       {at(plant(needsApproval, approved("line", one)), 2), "ApprovalNeeded", true},
		"approved":                                         {at(plant(needsApproval, approved("line", two)), 2), follow, false},
		"an approval is missing for what ran everywhere":   {at(plant(needsApproval), 2, func(s *Situation) { s.Target, s.Disk = one, two }), follow, false},
		"an approval is missing for what is on the disk":   {at(plant(needsApproval), 2, has), follow, false},
		"an approval is missing for a part on the disk":    {at(plant(needsApproval), 2, partly), "ApprovalNeeded", true},
		"its stage is next, and waits for an approval":     {at(plant(needsApproval), 1), "ApprovalNeeded", false},
		"its stage is next and approved, but not open yet": {at(plant(needsApproval, approved("line", two)), 1), "GateClosed", false},
		"dry run before the rollout":                       {at(plant(dryRunBefore), 0), dry, false},
		"dry run is over":                                  {at(plant(dryRunBefore), 1), "GateClosed", false},
		"first start before the dry run":                   {at(plant(dryRunBefore), 0, fresh), goesBack, false},
		"the ref moved":                                    {at(plant(), 2, moved), "RefMoved", false},
		"the ref moved, and it has the commit":             {at(plant(), 2, moved, has), follow, false},
		"the ref moved before its first start":             {at(plant(), 2, moved, fresh), follow, false},
		"the ref moved, no stages":                         {at(plant(func(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment = nil }), 0, moved), "RefMoved", false},
		"too many names":                                   {at(plant(tooLarge), 2), "ProfilesInvalid", false},
		"too many names at the first start":                {at(plant(tooLarge), 3, fresh), follow, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := gate(c.s)
			is := follow
			switch {
			case p.held != nil:
				is = string(p.held.Reason)
				assert.NotEmpty(t, p.held.Message)
				assert.Nil(t, p.to)
				assert.False(t, p.dryRunOnly)
			case p.to != nil:
				is = goesBack
				assert.Equal(t, from, *p.to)
			case p.dryRunOnly:
				is = dry
			}
			assert.Equal(t, c.want, is)
			assert.Equal(t, c.ask, p.ask != "", p.ask)
			assert.Equal(t, c.want == goesBack && c.s.Rollout.Rollback, p.rollback)
		})
	}
}

func tooLarge(gs *v1alpha1.GatewaySync) {
	gs.Spec.Deployment.Stages[0].Gateways = slices.Concat(slices.Repeat([]string{"x"}, 2000), slices.Repeat([]string{"x*"}, 2000))
	if !schedule.TooLarge(gs) {
		panic("not too large")
	}
}

// Whatever a SyncTarget says, a gateway that has something never takes a commit of a stage without its approval.
func TestNoSyncTargetOpensStage(t *testing.T) {
	gs := plant(needsApproval, withoutHistory)
	for steps := range 5 {
		for open := range 5 {
			for bits := range 16 {
				s := at(gs, 0, func(s *Situation) {
					s.Rollout = Rollout{On: bits&1 != 0, Done: bits&2 != 0, Rollback: bits&4 != 0, Failed: bits&8 != 0, Steps: steps, Open: open, From: Origin{"main", "", two}}
				})
				p := gate(s)
				assert.True(t, p.held != nil || p.dryRunOnly, "%+v", s.Rollout)
			}
		}
	}
}
