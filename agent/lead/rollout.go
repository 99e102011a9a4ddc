package lead

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// observed has all that a rollout depends on. A new lead lacks failing, stale and health, and at most waits longer.
type observed struct {
	gs *v1alpha1.GatewaySync
	// published is the published target, want the one to publish, without its rollout.
	published, want v1alpha1.SyncTargetSpec
	// rollback means that the request in force goes back to a commit that ran everywhere.
	rollback bool
	// gateways are the gateways, also those whose pod is terminating, with their state for the published target.
	gateways []status.Standing
	// failing has the time since which a gateway reports an error, except one that git causes.
	failing map[installed]time.Time
	// stale has the time since which a gateway that ran the target has not answered a new revision.
	stale  map[installed]time.Time
	health health
	now    time.Time
}

// health is the result of the health checks of one step.
type health struct {
	step        string // see progress.probe
	ok          bool   // the last check succeeded
	failures    int    // failed checks in a row
	lastProblem string
}

// progress is a decision: which steps are open, and what the rollout waits for.
type progress struct {
	target *v1alpha1.TargetRollout
	fresh  bool // target begins a new attempt
	status *v1alpha1.RolloutStatus
	// check is the health check to send, and probe the step that it is about; nil if there is none.
	check *v1alpha1.HealthCheck
	probe string
	// again is when the decision changes by itself; zero for never.
	again time.Time
}

// patience is how long a gateway may report an error that may pass before the rollout is aborted. The agent retries meanwhile.
const patience = 30 * time.Second

// rollout is the state of advance while it decides.
type rollout struct {
	observed
	progress
	order  schedule.Order
	stepOf map[string]int // the step of each gateway
}

// advance returns how far the gateways may follow the target. It opens a step when all gateways of the steps before it run the target,
// verified, and what the stage asks for is there: time, health, an approval.
//
// A rollout waits for what can pass by itself or needs a user: git, a gateway, a Designer. What the commit causes aborts it, and so do a scan that
// keeps failing, a health check that fails too often, and a gateway that ran the commit and then fails.
func advance(o observed) progress {
	if !o.gs.InSteps() {
		return progress{}
	}
	if o.want.Commit == "" { // not known yet
		return progress{status: o.gs.Status.Rollout.DeepCopy()}
	}
	r := &rollout{observed: o, order: schedule.OrderOf(o.gs), stepOf: map[string]int{}}
	for _, g := range o.gateways {
		r.stepOf[g.Name] = r.order.StepOf(g.Name, g.Pod)
	}
	if r.target, r.fresh = r.begin(); r.fresh {
		r.gateways = unreported(o.gateways)
	}
	r.status = &v1alpha1.RolloutStatus{Commit: o.want.Commit, Steps: r.target.Steps}
	if f := r.target.From; f != nil {
		r.status.From = f.Commit
	}
	r.run()
	r.status.Step = r.target.Open
	r.keepSince()
	return r.progress
}

func (r *rollout) run() {
	switch {
	case r.target.Failed != "":
		r.describeAbort()
		return
	case r.target.Done:
		r.setPhase(v1alpha1.RolloutDone, "all steps are open")
		return
	case r.gs.Paused():
		phase := v1alpha1.RolloutProgressing
		if was, _ := r.lastPhase(int(r.target.Open)); was == v1alpha1.RolloutSoaking || was == v1alpha1.RolloutWaiting {
			phase, r.status.Stage = was, r.gs.Status.Rollout.Stage // the gateways still run the commit
		}
		r.setPhase(phase, "syncing is paused")
		return
	}
	if !r.dryRunsDone() {
		return
	}
	// opening one step may allow the next
	for r.mayOpenNext() {
		r.target.Open++
	}
}

func (r *rollout) setPhase(p v1alpha1.RolloutPhase, format string, args ...any) {
	r.status.Phase, r.status.Message = p, failure.Cut(fmt.Sprintf(format, args...), 1000)
}

// keepSince keeps the start of a phase that continues. A step that opened begins a phase.
func (r *rollout) keepSince() {
	at := metav1.NewTime(r.now.Truncate(time.Second))
	r.status.Since = &at
	if was := r.gs.Status.Rollout; was != nil && was.Since != nil && was.Commit == r.status.Commit && was.Phase == r.status.Phase &&
		was.Step == r.status.Step && was.Stage == r.status.Stage && !was.Since.After(r.now) {
		r.status.Since = was.Since.DeepCopy()
	}
}

// dryRunsDone reports whether every gateway has made its dry run, if they make one. Errors that do not abort the rollout: see faulty.
func (r *rollout) dryRunsDone() bool {
	if r.target.Open > 0 || !r.gs.DryRunBefore() {
		return true
	}
	done, rest := 0, []string(nil)
	for _, g := range r.gateways {
		switch {
		case g.Planned == r.want.Commit, g.Synced, leftOut(g):
			done++
		case r.faulty(g, false):
			r.abort("dry run", g)
			return false
		default:
			rest = append(rest, labelWithReason(g))
		}
	}
	if len(rest) == 0 && len(r.gateways) > 0 {
		return true
	}
	r.setPhase(v1alpha1.RolloutPlanning, "%d of %d gateways made a dry run of %s%s", done, len(r.gateways), syntax.ShortCommit(r.want.Commit), listed("; waits for ", rest))
	return false
}

// mayOpenNext reports whether the next step can be opened now. If not, it says what the rollout waits for.
func (r *rollout) mayOpenNext() bool {
	open := int(r.target.Open)
	if open > 0 && (!r.synced(open) || !r.soaked(open)) {
		return false
	}
	if open >= int(r.target.Steps) {
		r.target.Done = true
		r.setPhase(v1alpha1.RolloutDone, "all steps are open")
		return false
	}
	if len(r.gateways) == 0 { // all may be restarting
		r.setPhase(v1alpha1.RolloutProgressing, "no gateway runs")
		return false
	}
	stage := r.order.Stage(open + 1)
	if stage == nil || !r.order.Opens(open+1) || annotation.Approved(r.gs, stage.Name, r.want.Commit) {
		return true
	}
	switch n := r.members(stage); {
	case stage.RequireApproval:
		r.status.Stage = stage.Name
		r.setPhase(v1alpha1.RolloutWaiting, "stage %s waits for %s", stage.Name, r.neededApproval(stage))
		return false
	case n == 0:
		r.status.Stage = stage.Name
		r.setPhase(v1alpha1.RolloutWaiting, "stage %s has no gateway that could prove anything: it waits for %s", stage.Name, r.neededApproval(stage))
		return false
	}
	return true
}

// neededApproval names the approval of a stage, and the command for it.
func (r *rollout) neededApproval(stage *v1alpha1.Stage) string {
	return fmt.Sprintf("the approval %s@%s; to approve: stoker approve %s %s --commit %s", stage.Name, r.want.Commit, r.gs.Name, stage.Name, syntax.ShortCommit(r.want.Commit))
}

// members returns how many gateways of a stage take part in the rollout.
func (r *rollout) members(stage *v1alpha1.Stage) int {
	n := 0
	for _, g := range r.gateways {
		if s := r.order.Stage(r.stepOf[g.Name]); s != nil && s.Name == stage.Name && !leftOut(g) {
			n++
		}
	}
	return n
}

// synced reports whether all gateways of the open steps run the target. A gateway that ran it and fails now aborts the rollout, as one that the
// commit breaks does.
func (r *rollout) synced(open int) bool {
	r.setStage(open)
	before, _ := r.lastPhase(open)
	ran := before == v1alpha1.RolloutSoaking || before == v1alpha1.RolloutWaiting
	var rest, out []string
	n, recovering, stale := 0, 0, 0
	for _, g := range r.gateways {
		step := r.stepOf[g.Name]
		if step > open {
			continue
		}
		n++
		switch {
		case g.Synced:
		case leftOut(g):
			out = append(out, g.Label)
		case r.faulty(g, ran || step < open):
			r.abort(r.nameOf(step), g)
			return false
		default:
			rest = append(rest, labelWithReason(g))
			switch {
			case ran && g.Phase == v1alpha1.GatewayError && g.Reason.Cause() != v1alpha1.CauseGit:
				recovering++
			case ran && r.mayStillAnswer(g):
				stale++
			}
		}
	}
	switch {
	case len(rest) == 0 && r.stageProven(open):
		return true
	case len(rest) == 0: // its gateways are gone, or a user paused them
		r.setPhase(v1alpha1.RolloutProgressing, "no gateway of stage %s runs %s, so it proves nothing%s; waits for one, or for the approval %s@%s",
			r.status.Stage, syntax.ShortCommit(r.want.Commit), listed(": left out: ", out), r.status.Stage, r.want.Commit)
		return false
	case recovering+stale == len(rest) && before == v1alpha1.RolloutWaiting: // the stage need not soak again
		was := r.gs.Status.Rollout
		r.status.Stage = was.Stage
		if stale == len(rest) {
			r.setPhase(was.Phase, "%s", was.Message)
		} else {
			r.setPhase(was.Phase, "stage %s opens after its approval and when all gateways run %s again%s", was.Stage, syntax.ShortCommit(r.want.Commit), listed(": ", rest))
		}
		return false
	case recovering+stale == len(rest): // the soak goes on
		r.setPhase(v1alpha1.RolloutSoaking, "step %d of %d%s ran %s%s", open, r.target.Steps, inStage(r.status.Stage), syntax.ShortCommit(r.want.Commit), listed(" and waits for ", rest))
		return false
	}
	r.setPhase(v1alpha1.RolloutProgressing, "step %d of %d%s: %d of %d gateways run %s%s%s", open, r.target.Steps, inStage(r.status.Stage), n-len(rest)-len(out), n,
		syntax.ShortCommit(r.want.Commit), listed("; waits for ", rest), listed("; left out: ", out))
	return false
}

// stageProven reports whether a gateway of the stage that a step ends runs the target, or a user approved the stage. All its
// gateways may be left out or gone since it began. A step that ends no stage needs no proof.
func (r *rollout) stageProven(open int) bool {
	stage := r.order.Stage(open)
	if stage == nil || !r.order.Ends(open) || annotation.Approved(r.gs, stage.Name, r.want.Commit) {
		return true
	}
	return slices.ContainsFunc(r.gateways, func(g status.Standing) bool {
		s := r.order.Stage(r.stepOf[g.Name])
		return g.Synced && s != nil && s.Name == stage.Name
	})
}

// faulty reports whether a gateway's error aborts the rollout: it rolled back, or the commit is the cause. An error that may pass, and a scan that
// fails, must last some time. ran means that the gateway ran the commit: then each error counts, except those of git.
func (r *rollout) faulty(g status.Standing, ran bool) bool {
	if g.Phase != v1alpha1.GatewayError {
		return false
	}
	switch reason, cause := g.Reason, g.Reason.Cause(); {
	case reason == v1alpha1.ReasonRolledBack, cause == v1alpha1.CauseCommit && reason.Class() == v1alpha1.ClassStalled:
		return true
	case ran && cause != v1alpha1.CauseGit, r.reached(g) && (cause == v1alpha1.CauseCommit || reason == v1alpha1.ReasonScanFailed):
		since, ok := r.failing[installedOn(g)]
		if ok && r.now.Sub(since) >= patience {
			return true
		}
		if ok {
			r.decideAgain(since.Add(patience))
		}
	}
	return false
}

// reached reports whether the commit is on a gateway's disk, or was until the gateway went back by itself. Any other gateway that fails to load its
// files fails to load an earlier commit, for example because no maintenance window allows the target yet.
func (r *rollout) reached(g status.Standing) bool {
	return g.Commit == r.want.Commit || g.AutoRollback == r.want.Commit
}

// mayStillAnswer reports whether a gateway that ran the target still has time to report on its new revision. A request makes such a
// revision, and so does a change of the spec that does not affect what the gateway runs.
func (r *rollout) mayStillAnswer(g status.Standing) bool {
	since, ok := r.stale[installedOn(g)]
	if !g.Stale || !ok || r.now.Sub(since) >= patience {
		return false
	}
	r.decideAgain(since.Add(patience))
	return true
}

func (r *rollout) decideAgain(at time.Time) {
	if r.again.IsZero() || at.Before(r.again) {
		r.again = at
	}
}

// lastPhase returns the phase of the last status if it is about this step, and since when.
func (r *rollout) lastPhase(open int) (v1alpha1.RolloutPhase, time.Time) {
	was := r.gs.Status.Rollout
	if was == nil || was.Commit != r.want.Commit || int(was.Step) != open || was.Since == nil || was.Since.After(r.now) {
		return "", time.Time{}
	}
	return was.Phase, was.Since.Time
}

// soaked reports whether a stage has run long enough, and is healthy. Only the last step of a stage waits.
func (r *rollout) soaked(open int) bool {
	stage := r.order.Stage(open)
	if stage == nil || !r.order.Ends(open) {
		return true
	}
	began := r.now
	switch phase, since := r.lastPhase(open); phase {
	case v1alpha1.RolloutWaiting: // the stage has soaked
		return true
	case v1alpha1.RolloutSoaking:
		began = since
	}
	end, healthy := began.Add(stage.Soak()), ""
	if c := stage.Check(); c != nil {
		h := r.health
		r.check, r.probe = c, fmt.Sprint(r.want.Commit, "/", r.target.Rules, "/", r.target.Revision, "/", open) // a new attempt begins without results
		if h.step != r.probe {
			h = health{}
		}
		switch {
		case h.failures >= int(c.FailureThreshold):
			r.fail(fmt.Sprintf("%s: the health check failed %d times: %s", r.nameOf(open), h.failures, h.lastProblem))
			return false
		case h.lastProblem != "":
			healthy = "its health check succeeds (now: " + h.lastProblem + ")"
		case !h.ok:
			healthy = "its health check succeeds"
		}
	}
	var rest []string
	if r.now.Before(end) {
		rest = append(rest, "it is "+end.UTC().Format(time.RFC3339))
		r.decideAgain(end)
	}
	if healthy != "" {
		rest = append(rest, healthy)
	}
	if len(rest) == 0 {
		r.check = nil
		return true
	}
	r.setPhase(v1alpha1.RolloutSoaking, "stage %s runs %s and waits until %s", stage.Name, syntax.ShortCommit(r.want.Commit), strings.Join(rest, " and "))
	return false
}

func (r *rollout) setStage(step int) {
	r.status.Stage = ""
	if s := r.order.Stage(step); s != nil {
		r.status.Stage = s.Name
	}
}

// nameOf names a step in messages.
func (r *rollout) nameOf(step int) string {
	if s := r.order.Stage(step); s != nil {
		return "stage " + s.Name
	}
	return fmt.Sprintf("step %d", step)
}

// abort ends the rollout because of a gateway.
func (r *rollout) abort(where string, g status.Standing) {
	text := fmt.Sprintf("%s: %s %s", where, g.Label, g.Reason)
	if g.Message != "" {
		text += ": " + failure.Cut(g.Message, 200)
	}
	r.fail(text)
}

// fail ends the rollout. With autoRollback for the rollout, the gateways that it has reached go back.
func (r *rollout) fail(text string) {
	r.setFailed(r.target, text)
	r.check = nil
	r.describeAbort()
}

func (r *rollout) setFailed(t *v1alpha1.TargetRollout, text string) {
	t.Failed = failure.Cut(text, 500)
	t.Back = r.gs.AutoRollbackScope() == v1alpha1.AutoRollbackRollout && t.Open > 0 && t.From != nil && t.From.Commit != r.want.Commit
}

// describeAbort says which gateways the rollout had reached.
func (r *rollout) describeAbort() {
	t, back, got := r.target, 0, 0
	specChanged := t.From != nil && t.From.Commit == r.want.Commit // each gateway had the commit before
	for _, g := range r.gateways {                                 // by commit, because a change of the stages can move a gateway to another step
		switch {
		case g.Commit == r.want.Commit && (!specChanged || r.stepOf[g.Name] <= int(t.Open)):
			got++
		case t.From != nil && g.Commit == t.From.Commit:
			back++
		}
	}
	r.setStage(int(t.Open))
	all := len(r.gateways)
	switch {
	case t.Back:
		r.setPhase(v1alpha1.RolloutAborted, "%s; %d of %d went back to %s or never left it", t.Failed, back, all, syntax.ShortCommit(t.From.Commit))
	case got > 0:
		r.setPhase(v1alpha1.RolloutAborted, "%s; %d of %d got %s and stay for inspection, %d never got it", t.Failed, got, all, syntax.ShortCommit(r.want.Commit), all-got)
	default:
		r.setPhase(v1alpha1.RolloutAborted, "%s; no gateway got %s", t.Failed, syntax.ShortCommit(r.want.Commit))
	}
}

// leftOut reports whether a gateway is not synced on purpose, so that the rollout leaves it out.
func leftOut(g status.Standing) bool {
	return g.Reason == v1alpha1.ReasonPaused || g.Reason == v1alpha1.ReasonDryRun && g.Planned == ""
}

func labelWithReason(g status.Standing) string {
	text := g.Label
	if g.Reason != "" {
		text += " (" + string(g.Reason) + ")"
	}
	return text
}

// listed joins the first names of a list after a text, or returns "" if there are none.
func listed(text string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return text + failure.First(names, 3)
}

func inStage(stage string) string {
	if stage == "" {
		return ""
	}
	return ", stage " + stage
}
