package decide

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

// holdFor returns a Hold with this reason and some message.
func holdFor(reason v1alpha1.Reason) *Hold { return &Hold{reason, "why"} }

func inForce(id plan.ID) func(*Situation) {
	return func(s *Situation) { s.InForce = InForce{true, id} }
}

func obstacle(doNotTouch, short bool) func(*Situation) {
	return func(s *Situation) {
		s.Obstacle = &Obstacle{*holdFor(v1alpha1.ReasonWaitingForLead), doNotTouch, short}
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

// targetOne is a rollout of other settings: the target is commit one, too.
func targetOne(s *Situation) { s.Target = one }

func TestNext(t *testing.T) {
	gs, open, closed := plant(), 2, 1
	for name, c := range map[string]struct {
		s      Situation
		do     Action
		flags  string // "do not touch", "pauses", "of target", "rollback", "refill", "planned"
		to     plan.ID
		reason v1alpha1.Reason // of the hold; "" for none
	}{
		"the target cannot be read":                               {at(gs, open, obstacle(false, false)), Leave, "", plan.ID{}, "WaitingForLead"},
		"the target cannot be read, and it pauses":                {at(gs, open, obstacle(false, false), paused), Leave, "pauses ", plan.ID{}, "WaitingForLead"},
		"the target is gone":                                      {at(gs, open, obstacle(true, false), inForce(one)), Leave, "do not touch ", plan.ID{}, "WaitingForLead"},
		"the spec cannot be read":                                 {at(gs, open, obstacle(false, false), inForce(one)), Leave, "", plan.ID{}, "WaitingForLead"},
		"the spec cannot be read for a moment":                    {at(gs, open, obstacle(false, true), inForce(one)), Leave, "", plan.ID{}, ""},
		"the spec cannot be read for a moment, no order in force": {at(gs, open, obstacle(false, true)), Leave, "", plan.ID{}, "WaitingForLead"},
		"nothing holds it":                                        {at(gs, open, inForce(one)), Follow, "", plan.ID{}, ""},
		"nothing holds it, paused":                                {at(gs, open, inForce(one), paused), Follow, "", plan.ID{}, ""}, // the order in force has the pause
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
		"the rollout went back":                                   {at(gs, open, back, hasTarget), Follow, "rollback ", one, ""},
		"no commit yet":                                           {at(gs, open, noCommit), Follow, "", plan.ID{}, "WaitingForLead"},
		"no commit yet, and an order without":                     {at(gs, open, noCommit, inForce(plan.ID{})), Follow, "", plan.ID{}, "WaitingForLead"},
		"no commit any more":                                      {at(gs, open, noCommit, inForce(one)), Leave, "pauses ", plan.ID{}, "WaitingForLead"},
		"the ref cannot be resolved":                              {at(gs, open, noCommit, func(s *Situation) { s.Unresolved = holdFor(v1alpha1.ReasonRefNotFound) }), Follow, "", plan.ID{}, "RefNotFound"},
		"a new volume":                                            {at(gs, open, lost), Follow, "of target refill ", one, ""},
		"a new volume while its step is closed":                   {at(gs, closed, lost), Follow, "of target refill ", one, ""},
		"a new volume that has all files":                         {at(gs, closed, lost, func(s *Situation) { s.Incomplete = false }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a new volume, the files cannot be written":               {at(gs, closed, lost, func(s *Situation) { s.GaveUp = true }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a running gateway that lacks files":                      {at(gs, closed, lost, func(s *Situation) { s.NewVolume = false }), KeepOnDisk, "pauses of target ", plan.ID{}, "GateClosed"},
		"a new volume that had the target":                        {at(gs, open, lost, targetOne), Follow, "", plan.ID{}, ""},
		"a new volume that had the target, its step is closed":    {at(gs, closed, lost, targetOne), Follow, "", plan.ID{}, ""},
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
			}{{"do not touch", n.DoNotTouch}, {"pauses", n.ApplyPause}, {"of target", n.ReportTarget}, {"rollback", n.Rollback}, {"refill", n.Refill}, {"planned", n.Planned}} {
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
	gs.Status.History = []v1alpha1.CommitRecord{{Ref: "main", Commit: two.String()}} // forged with the token of an agent
	changes := []func(*Situation){paused, invalid, planned, inForce(one), inForce(two), obstacle(false, true), lost, partly, failed, back, moved, noRollout}
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

func TestClosedGate(t *testing.T) {
	for name, c := range map[string]struct {
		ClosedGate
		stops, force, restoreOnly bool
	}{
		"no order":                             {ClosedGate{Disk: one}, false, false, false},
		"the order has run":                    {ClosedGate{Order: one, Disk: one}, false, true, false},
		"the order would bring another commit": {ClosedGate{Order: two, Disk: one}, true, false, false},
		"a requested rollback":                 {ClosedGate{Order: two, Disk: one, Requested: true}, false, false, false},
		"a restore of another commit":          {ClosedGate{Order: two, Disk: one, Restores: true}, false, false, true},
		"a restore of the commit on the disk":  {ClosedGate{Order: one, Disk: one, Restores: true}, false, false, false},
		"a restore and a requested rollback":   {ClosedGate{Order: two, Disk: one, Requested: true, Restores: true}, false, false, false},
		"a first start":                        {ClosedGate{Order: two, Unsynced: true}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.stops, c.StopsOrder())
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

const (
	snapshot = "line-1-20300101-000000"
	request  = snapshot + " 2030-01-02T00:00:00Z"
)

var day = time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)

// asked is what is asked of line-1 an hour after the request to restore. Commit two is the target and on the disk.
func asked(change ...func(*Asked)) Asked {
	a := Asked{Gateway: "line-1", Commit: two, Disk: two, Now: day.Add(time.Hour), Requests: annotation.Requests{Restore: request, Retry: one.String() + " r"}}
	for _, c := range change {
		c(&a)
	}
	return a
}

func TestRestore(t *testing.T) {
	done := RestoreNote{}.RestoreOf(snapshot, asked())
	done.Done = true
	spec := func(a *Asked) { a.Restore = snapshot }
	const other = "line-1-20300101-111111"
	overSpec := func(a *Asked) { a.Restore, a.HiddenRestore = other+" t", snapshot }
	doneAfterSpec := RestoreNote{}.RestoreOf(snapshot, asked(spec)).RestoreOf(other, asked(overSpec))
	doneAfterSpec.Done = true
	doneBeforeSpec := RestoreNote{}.RestoreOf(other, asked(func(a *Asked) { a.Restore = other + " t" }))
	after := func(on RestoreNote, change ...func(*Asked)) RestoreNote { // what the gateway was asked last
		n, _ := Restore(on, asked(change...))
		return n
	}
	withoutTime := func(a *Asked) {
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = map[string]string{v1alpha1.AnnotationRestore: other}
		gs.Spec.Rollback = &v1alpha1.RollbackSpec{ToSnapshot: snapshot}
		a.Requests = annotation.RequestsFor(gs, a.Gateway, a.Commit.String())
	}
	doneWithoutTime := RestoreNote{}.RestoreOf(snapshot, asked(spec)).RestoreOf(other, asked(withoutTime))
	rolledBack := RestoreNote{Snapshot: snapshot, Commit: two, Retry: one.String() + " r", Done: true, Trigger: v1alpha1.TriggerScanFailure, Cause: "why", RolledBackFrom: two}
	lapsed := RestoreNote{Request: request, Commit: one, RolledBackFrom: one}
	none := func(a *Asked) { a.Restore = "" }
	dropped := func(a *Asked) { a.Restore, a.HiddenRestore = "", snapshot }
	commit := func(id plan.ID) func(*Asked) { return func(a *Asked) { a.Commit = id } }
	force := func(a *Asked) { a.Force = "now" }
	retry := func(id plan.ID) func(*Asked) { return func(a *Asked) { a.Retry = id.String() + " later" } }
	later := func(a *Asked) { a.Now = a.Now.Add(24 * time.Hour) }
	newVolume := func(a *Asked) { a.Disk = plan.ID{} }
	for name, c := range map[string]struct {
		on     RestoreNote
		a      Asked
		want   string // the snapshot that replaces the target
		done   bool
		remark string
	}{
		"never restored": {RestoreNote{}, asked(none), "", false, ""},
		"a new request":  {RestoreNote{}, asked(), snapshot, false, ""},
		"the request of the spec, after an annotation":         {doneAfterSpec, asked(spec), other, true, ""},
		"the request of the spec, after one without a time":    {doneWithoutTime, asked(spec, func(a *Asked) { a.Retry = "" }), other, false, ""},
		"a new request of the spec, after an annotation":       {doneAfterSpec, asked(func(a *Asked) { a.Restore = other }), other, false, ""},
		"the request of the spec, hidden by an annotation":     {after(doneBeforeSpec, overSpec), asked(spec), other, false, ""},
		"the request of the spec again":                        {after(RestoreNote{}.RestoreOf("", asked(spec)), none), asked(spec), snapshot, false, ""},
		"the request of the spec again, after an annotation":   {after(doneAfterSpec, func(a *Asked) { a.Restore = other + " t" }), asked(spec), snapshot, false, ""},
		"the request of the spec, after a refill":              {after(RestoreNote{}, dropped), asked(spec), snapshot, false, ""},
		"the done request of the spec, after a refill":         {after(RestoreNote{}.RestoreOf("", asked(spec)), dropped), asked(spec), "", false, ""},
		"a new request replaces a restore":                     {done, asked(func(a *Asked) { a.Restore = "line-1-20300101-111111 " + day.Format(time.RFC3339) }), "line-1-20300101-111111", false, ""},
		"a new request after an automatic rollback":            {rolledBack, asked(), snapshot, false, ""},
		"the same request, files not written":                  {RestoreNote{}.RestoreOf(snapshot, asked()), asked(), snapshot, false, ""},
		"the same request, files written":                      {done, asked(), snapshot, true, ""},
		"the same request after it lapsed":                     {lapsed, asked(), "", false, ""},
		"the request was removed":                              {done, asked(none), snapshot, true, ""},
		"another target":                                       {done, asked(commit(one)), "", true, ""},
		"a new force-sync request":                             {done, asked(force), snapshot, true, ""},
		"rolled back automatically, a new force-sync request":  {rolledBack, asked(none, force), snapshot, true, ""},
		"damaged, then a new force-sync request":               {asked(commit(one)).Damaged(), asked(commit(one), force), UnknownSnapshot, true, ""},
		"a request to retry the target":                        {done, asked(retry(two)), "", true, ""},
		"a request to retry another commit":                    {done, asked(retry(one)), snapshot, true, ""},
		"rolled back automatically":                            {rolledBack, asked(none), snapshot, true, ""},
		"rolled back automatically, retried":                   {rolledBack, asked(none, retry(two)), "", true, ""},
		"an old request on a new volume":                       {RestoreNote{}, asked(newVolume, later), "", false, "is older than this data volume; ask again"},
		"a request of today on a new volume":                   {RestoreNote{}, asked(newVolume), snapshot, false, ""},
		"an old request on this volume":                        {RestoreNote{}, asked(later), snapshot, false, ""},
		"a request of the spec on a new volume":                {RestoreNote{}, asked(newVolume, later, spec), snapshot, false, ""},
		"an old request on a new volume, files written":        {done, asked(newVolume, later), snapshot, true, ""},
		"damaged, the target is not on the disk":               {asked(commit(one)).Damaged(), asked(commit(one)), UnknownSnapshot, true, ""},
		"damaged, the target is on the disk":                   {asked().Damaged(), asked(), "", false, ""},
		"damaged, the target is on the disk, the next request": {asked(none).Damaged(), asked(), snapshot, false, ""},
		"damaged, then retried":                                {asked(commit(one)).Damaged(), asked(commit(one), func(a *Asked) { a.Retry = one.String() + " later" }), "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, remark := Restore(c.on, c.a)
			assert.Equal(t, c.want, n.Snapshot)
			assert.Equal(t, c.done, n.Done)
			assert.Contains(t, remark, c.remark)
			assert.Equal(t, c.remark == "", remark == "")
			assert.Equal(t, c.on.RolledBackFrom, n.RolledBackFrom, "an automatic rollback happens once for each commit")
			again, _ := Restore(n, c.a)
			assert.Equal(t, n, again, "nothing new was asked")
		})
	}
}

var update = flag.Bool("update", false, "write docs/internals/decisions.md")

const page = "../../docs/internals/decisions.md"

// TestPage compares decisions.md with the doc comments of the functions in its list.
func TestPage(t *testing.T) {
	comments := functionComments(t)
	var b strings.Builder
	b.WriteString("<!-- Generated from agent/decide by `go test ./agent/decide -run Page -update`. -->\n\n# What a gateway does next\n\n" +
		"`agent/decide` has every rule of this as a function without I/O, and a table test for each.\n")
	// sequence: the sections of one page
	for _, s := range []struct{ title, function string }{
		{"The next step", "Next"}, {"The gate of a rollout", "gate"}, {"While a gate is closed", "ClosedGate.StopsOrder"}, {"Pauses", "Pause.Apply"},
		{"Maintenance windows", "Delivery.WaitsForWindow"}, {"The validation webhook", "Delivery.NeedsReview"}, {"Restores", "Restore"},
		{"Automatic rollback", "Failures.Add"}, {"Changes that are proposed to git", "Wait.Blocks"}, {"The next move of a proposal", "Schedule.Move"},
		{"Drift", "Drift.Repair"},
	} {
		require.NotEmpty(t, comments[s.function], s.function)
		b.WriteString("\n## " + s.title + "\n\n" + comments[s.function])
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
	}
	is, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(is), "run go test ./agent/decide -run Page -update")
}

// functionComments returns the comments of the package's functions as Markdown, by name; of methods by Type.Name.
func functionComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	comments, table := map[string]string{}, regexp.MustCompile(`(?m)^\t`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil {
				name := f.Name.Name
				if f.Recv != nil {
					name = strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + name
				}
				comments[name] = table.ReplaceAllString(f.Doc.Text(), "    ")
			}
		}
	}
	return comments
}

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

// Changes of a situation.
func fresh(s *Situation)     { s.Disk, s.Whole, s.Unsynced = plan.ID{}, false, true }
func hasTarget(s *Situation) { s.Disk, s.Whole = two, true }
func ranOne(s *Situation)    { s.Target, s.Disk, s.Earlier = one, two, []plan.ID{one} }
func isNew(s *Situation)     { s.NewVolume, s.Empty = true, true }
func partly(s *Situation)    { s.Disk, s.Whole = two, false }
func failed(s *Situation)    { s.Rollout.Failed = true }
func back(s *Situation)      { s.Rollout.Rollback, s.Rollout.Failed = true, true }
func moved(s *Situation)     { s.Moved = "main moved" }
func noRollout(s *Situation) { s.Rollout = Rollout{} }

func TestGate(t *testing.T) {
	const follow, dry, goesBack = "follow", "dry run", "back"
	for name, c := range map[string]struct {
		s    Situation
		want string // follow, dry run, back, or the reason of the hold
		ask  bool   // whether a newer GatewaySync may change the answer
	}{
		"its step is open":                                        {at(plant(), 2), follow, false},
		"its step is closed":                                      {at(plant(), 1), "GateClosed", false},
		"its step is closed, and it has the commit":               {at(plant(), 1, hasTarget), "GateClosed", false},
		"all steps are open":                                      {at(plant(), 3), follow, false},
		"no rollout":                                              {at(plant(), 0, noRollout), follow, false},
		"no stages":                                               {at(plant(func(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment = nil }), 0), follow, false},
		"no commit yet":                                           {at(plant(), 1, func(s *Situation) { s.Target = plan.ID{} }), follow, false},
		"other steps than the lead":                               {at(plant(), 1, func(s *Situation) { s.Rollout.Steps = 4 }), "WaitingForLead", false},
		"other steps than the lead, and all done":                 {at(plant(), 3, func(s *Situation) { s.Rollout.Steps = 4 }), follow, false},
		"first start, its step is open":                           {at(plant(), 2, fresh), follow, false},
		"first start, its step is closed":                         {at(plant(), 1, fresh), goesBack, false},
		"first start, and nothing ran everywhere":                 {at(plant(withoutHistory), 1, fresh), follow, true},
		"first start of a fleet":                                  {at(plant(withoutHistory), 1, fresh, func(s *Situation) { s.Rollout.From = Origin{} }), follow, false},
		"first start after an abort":                              {at(plant(), 2, fresh, failed), goesBack, false},
		"first start, an approval is missing":                     {at(plant(needsApproval), 1, fresh), goesBack, false},
		"the rollout went back":                                   {at(plant(), 2, back, hasTarget), goesBack, false},
		"the rollout went back before its step":                   {at(plant(), 1, back), "GateClosed", false},
		"the rollout went back, and its step was closed":          {at(plant(), 1, back, hasTarget), goesBack, false},
		"the rollout went back to what the status lacks":          {at(plant(withoutHistory), 2, back, hasTarget), "WaitingForLead", true},
		"the rollout was aborted":                                 {at(plant(), 2, failed), "GateClosed", false},
		"the rollout was aborted, and it has the commit":          {at(plant(), 2, failed, hasTarget), follow, false},
		"the rollout was aborted and is done":                     {at(plant(), 3, failed), follow, false},
		"an approval is missing":                                  {at(plant(needsApproval), 2), "ApprovalNeeded", true},
		"an approval is missing, all steps are open":              {at(plant(needsApproval), 3), "ApprovalNeeded", true},
		"an approval is missing, and no rollout":                  {at(plant(needsApproval), 0, noRollout), "ApprovalNeeded", true},
		"another stage is approved":                               {at(plant(needsApproval, approved("dev", two)), 2), "ApprovalNeeded", true},
		"another commit is approved":                              {at(plant(needsApproval, approved("line", one)), 2), "ApprovalNeeded", true},
		"approved":                                                {at(plant(needsApproval, approved("line", two)), 2), follow, false},
		"an approval is missing for what ran everywhere":          {at(plant(needsApproval), 2, func(s *Situation) { s.Target, s.Disk = one, two }), "ApprovalNeeded", true},
		"an approval is missing for what ran here":                {at(plant(needsApproval, withoutHistory), 2, ranOne), "ApprovalNeeded", true},
		"an approval is missing for what ran here and everywhere": {at(plant(needsApproval), 2, ranOne), follow, false},
		"it goes back without an approval, and ran that":          {at(plant(needsApproval), 2, back, func(s *Situation) { s.Disk, s.Earlier = two, []plan.ID{one} }), goesBack, false},
		"it goes back without an approval":                        {at(plant(needsApproval), 2, back, hasTarget), "ApprovalNeeded", true},
		"it goes back, approved":                                  {at(plant(needsApproval, approved("line", one)), 2, back, hasTarget), goesBack, false},
		"it goes back without an approval, a new volume":          {at(plant(needsApproval), 2, back, hasTarget, isNew), goesBack, false},
		"an approval is missing for what is on the disk":          {at(plant(needsApproval), 2, hasTarget), follow, false},
		"an approval is missing for what a new volume had":        {at(plant(needsApproval), 2, lost, targetOne), follow, false},
		"its step is closed for what a new volume had":            {at(plant(), 1, lost, targetOne), follow, false},
		"its step is closed for what a volume lacks":              {at(plant(), 1, lost, targetOne, func(s *Situation) { s.NewVolume = false }), "GateClosed", false},
		"aborted before its step, for what a new volume had":      {at(plant(), 1, failed, lost, targetOne), follow, false},
		"dry run before the rollout of what a new volume had":     {at(plant(dryRunBefore), 0, lost, targetOne), follow, false},
		"an approval is missing for what a volume lacks":          {at(plant(needsApproval), 2, lost, targetOne, func(s *Situation) { s.NewVolume = false }), "ApprovalNeeded", true},
		"an approval is missing for a part on the disk":           {at(plant(needsApproval), 2, partly), "ApprovalNeeded", true},
		"its stage is next, and waits for an approval":            {at(plant(needsApproval), 1), "ApprovalNeeded", false},
		"its stage is next and approved, but not open yet":        {at(plant(needsApproval, approved("line", two)), 1), "GateClosed", false},
		"dry run before the rollout":                              {at(plant(dryRunBefore), 0), dry, false},
		"dry run is over":                                         {at(plant(dryRunBefore), 1), "GateClosed", false},
		"first start before the dry run":                          {at(plant(dryRunBefore), 0, fresh), goesBack, false},
		"the ref moved":                                           {at(plant(), 2, moved), "RefMoved", false},
		"the ref moved, and it has the commit":                    {at(plant(), 2, moved, hasTarget), follow, false},
		"the ref moved before its first start":                    {at(plant(), 2, moved, fresh), follow, false},
		"the ref moved, no stages":                                {at(plant(func(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment = nil }), 0, moved), "RefMoved", false},
		"too many names":                                          {at(plant(tooLarge), 2), "ProfilesInvalid", false},
		"too many names at the first start":                       {at(plant(tooLarge), 3, fresh), follow, false},
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

// Whatever a SyncTarget says, a gateway that was synced before never takes a commit without the approval that its stage needs.
func TestNoSyncTargetOpensStage(t *testing.T) {
	gs := plant(needsApproval, withoutHistory)
	gs.Status.History = []v1alpha1.CommitRecord{{Ref: "main", Commit: two.String()}} // forged with the same token
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
