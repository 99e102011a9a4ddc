package status

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// facts is what every part of a status is computed from. assess and Leaderless.facts return it, and nothing changes it afterwards.
type facts struct {
	// Seen is the input. Invalid is also set if a gateway uses a flawed profile, and Ref.Err if it is only known from an earlier
	// lead.
	Seen
	last *v1alpha1.GatewaySyncStatus
	now  metav1.Time // in whole seconds, as in the status
	// fleet has the live gateways. If none is live, it has the known ones, and away is not nil.
	fleet fleet
	away  *away
	// target is the new status.target.
	target *v1alpha1.TargetStatus
	// resolved means that Target is the desired ref of the current spec.
	resolved bool
	// sameTarget means that the last status is about the same spec, ref and commit.
	sameTarget bool
	// inherited means that Ref.Err is from an earlier lead.
	inherited bool
}

// assess returns the facts that a lead sees.
func assess(s Seen) *facts {
	gs := s.GatewaySync
	f := &facts{Seen: s, last: &gs.Status, now: inSeconds(s.Now), fleet: gateways(&s, false)}
	if len(f.fleet) == 0 {
		f.fleet, f.away = absentGateways(&s)
	}
	if f.Invalid == nil {
		f.Invalid = f.fleet.profileError(s.Flawed)
	}
	f.resolved = s.Target.Commit != "" && s.Target.Generation == gs.Generation && s.Target.Ref == s.Ref.Desired.Ref &&
		s.Ref.Desired.CheckCommit(s.Target.Commit) == nil
	f.target = f.last.Target.DeepCopy() // kept if the request or the spec is invalid
	if s.Ref.Desired.Ref != "" {
		f.target = targetStatus(s.Ref)
		if f.resolved {
			f.target.Commit, f.target.CommitShort, f.target.Subject = s.Target.Commit, syntax.ShortCommit(s.Target.Commit), s.Subject
			if was := f.last.Target; s.Subject == "" && was != nil && was.Commit == s.Target.Commit {
				f.target.Subject = was.Subject // of an earlier lead
			}
		}
	}
	was := f.last.Target
	f.sameTarget = f.last.ObservedGeneration == gs.Generation && was != nil && f.target != nil && was.Ref == f.target.Ref && was.Commit == f.target.Commit
	if f.sameTarget {
		f.fleet.keepFailureReasons(f.last)
	}
	if f.Ref.Err == nil {
		f.Ref.Err = f.lastRefError()
		f.inherited = f.Ref.Err != nil
	}
	return f
}

// lastRefError returns the error of an earlier lead about the same ref, so that it causes no new Event, or nil.
func (f *facts) lastRefError() error {
	c := f.lastCondition(v1alpha1.ConditionRefResolved)
	if f.Ref.Polled || c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != f.GatewaySync.Generation || !f.sameRef() {
		return nil
	}
	return failure.New(v1alpha1.Reason(c.Reason), "%s", c.Message)
}

func inSeconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func (f *facts) lastCondition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(f.last.Conditions, kind)
}

// sameRef reports whether the last status is about the same ref.
func (f *facts) sameRef() bool {
	return f.last.Target != nil && f.target != nil && f.last.Target.Ref == f.target.Ref
}

// running returns how many gateways run the desired ref. While the ref is unresolved, no gateway does.
func (f *facts) running() int {
	if !f.resolved {
		return 0
	}
	return f.fleet.synced()
}

// rolling reports whether a rollout of the target is not done.
func (f *facts) rolling() bool {
	return f.resolved && f.Rollout != nil && f.Rollout.Phase != v1alpha1.RolloutDone
}

// requestUnanswered reports whether the poll for the request in force failed. It makes Ready False although all gateways run the
// target. Clients that wait get their result when a poll succeeds, or at the deadline. If Ready is False already, a request for
// which git was not polled yet counts, too, so that a new request after a failed one does not make Ready True until its own poll.
func (f *facts) requestUnanswered() bool {
	at, ready := f.Ref.Desired.RequestedAt, f.lastCondition(v1alpha1.ConditionReady)
	failed := f.Ref.Answered == at || ready != nil && ready.Status == metav1.ConditionFalse
	return f.Ref.Err != nil && at != "" && failed && f.Target.RequestedAt != at
}

// describeTarget returns the target as text: the ref and the commit, or only the commit if the ref is that commit.
func (f *facts) describeTarget() string {
	if strings.HasPrefix(f.Target.Commit, f.Target.Ref) {
		return syntax.ShortCommit(f.Target.Commit)
	}
	return f.Target.Ref + " at " + syntax.ShortCommit(f.Target.Commit)
}

// rollbackPrefix returns how the message of Ready begins if a rollback is in force, else "". The fleet is healthy then, but does
// not run what the spec says.
func (f *facts) rollbackPrefix() string {
	if !f.goesBack() {
		return ""
	}
	return fmt.Sprintf("rolled back: %s of %s is blocked; ", syntax.ShortCommit(f.Ref.Desired.Unless), f.GatewaySync.Spec.Git.Ref)
}

// goesBack reports whether the target is a rollback that was requested.
func (f *facts) goesBack() bool {
	return f.Ref.Desired.GoesBack(f.Target.Commit, f.last.RanEverywhere)
}

// maxReason bounds the reason of a row and of an outcome, in bytes.
const maxReason = 64

// conditionReason matches the reasons that the API server admits in a condition, up to 1,024 bytes. The API server admits any
// text of at most maxReason characters as the reason of a report, a row or an outcome.
var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// admitted returns a reason that both a condition and an outcome can have. Any other becomes Progressing, because the API server would
// reject the whole status.
func admitted(reason v1alpha1.Reason) v1alpha1.Reason {
	if len(reason) > maxReason || !conditionReason.MatchString(string(reason)) {
		return v1alpha1.ReasonProgressing
	}
	return reason
}

// condition returns a condition of the current generation. putCondition adds its type.
func (f *facts) condition(status metav1.ConditionStatus, reason v1alpha1.Reason, message string) *metav1.Condition {
	return &metav1.Condition{Status: status, Reason: string(admitted(reason)), Message: failure.Cut(message, maxMessage), ObservedGeneration: f.GatewaySync.Generation, LastTransitionTime: f.now}
}

// maxMessage bounds the text of a condition, an event or a row, in bytes.
const maxMessage = 1000

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxNames bounds the names in a message.
const maxNames = 5

// list joins the first maxNames names.
func list(names []string) string { return failure.First(names, maxNames) }
