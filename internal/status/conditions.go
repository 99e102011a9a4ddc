package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// Condition is a row of the table of conditions. To add one, add a row with a function that computes it, and run
// `go test ./internal/status -update`, which writes the table of the documentation.
type Condition struct {
	Type string
	// True, False and Unknown say when the condition has this status; empty if it never has.
	True, False, Unknown string
	// compute returns the condition, or nil if the status has none. A function that keeps the last condition returns that. The
	// conditions without a function follow from the verdict on the whole fleet, see judge and progress.
	compute func(*facts) *metav1.Condition
}

// Conditions lists the conditions of a GatewaySync.
var Conditions = []Condition{
	{Type: v1alpha1.ConditionReady, True: "every discovered gateway reports the target commit for the current generation, verified", False: "see the reason",
		Unknown: "no gateway was discovered, or no agent runs"},
	{Type: v1alpha1.ConditionAllGatewaysSynced, True: "the same, whether or not git can be reached", False: "a gateway does not run the commit yet",
		Unknown: "no gateway was discovered, or no agent runs"},
	{Type: v1alpha1.ConditionRefResolved, True: "the desired ref has a commit", False: "git cannot be reached, or has no such ref", Unknown: "git was not polled yet",
		compute: refResolved},
	{Type: v1alpha1.ConditionSSHHostKeyVerification, True: "the git host presented a trusted key", False: "it did not, or it is not checked",
		Unknown: "it was not reached yet; absent for repositories without ssh", compute: sshHostKeyVerification},
	{Type: v1alpha1.ConditionProfilesValid, True: "the spec is valid; the message also names invalid profiles that no gateway uses",
		False: "a field is wrong; the message names it", compute: profilesValid},
	{Type: v1alpha1.ConditionSidecarInjected, True: "every pod that asks for an agent has one", False: "the message names the pods without one",
		compute: func(f *facts) *metav1.Condition { return sidecarInjected(f, f.fleet.podsWithoutAgent(), "") }},
	{Type: v1alpha1.ConditionBidirectionalReady, True: "changes made on gateways can be proposed; the message counts the pull requests",
		False: "the message names a gateway whose changes are not proposed; absent if no profile proposes any", compute: bidirectionalReady},
	{Type: v1alpha1.ConditionReconciling, True: "work is under way; absent otherwise"},
	{Type: v1alpha1.ConditionStalled, True: "a user has to act; absent otherwise"},
}

// maxConditions is how many conditions the API server admits in a status.
const maxConditions = 16

// FitConditions removes conditions of other writers if there are so many that those of the types in own would not fit into a status. It
// changes the list.
func FitConditions(list []metav1.Condition, own []string) []metav1.Condition {
	others := 0
	return slices.DeleteFunc(list, func(c metav1.Condition) bool {
		if slices.Contains(own, c.Type) {
			return false
		}
		others++
		return others > maxConditions-len(own)
	})
}

// putCondition sets a condition, or removes it if c is nil. Conditions of other writers stay if there is room for them.
func putCondition(st *v1alpha1.GatewaySyncStatus, kind string, c *metav1.Condition) {
	own := make([]string, len(Conditions))
	for i := range Conditions {
		own[i] = Conditions[i].Type
	}
	st.Conditions = FitConditions(st.Conditions, own)
	if c == nil {
		meta.RemoveStatusCondition(&st.Conditions, kind)
		return
	}
	typed := *c
	typed.Type = kind
	was := meta.FindStatusCondition(st.Conditions, kind)
	if kind == v1alpha1.ConditionAllGatewaysSynced && was != nil && was.Status != metav1.ConditionTrue && typed.Status != metav1.ConditionTrue {
		typed.LastTransitionTime = was.LastTransitionTime // since when gateways are behind, also if no agent led for a while
	}
	meta.SetStatusCondition(&st.Conditions, typed)
}

// profilesValid returns the condition ProfilesValid. A flawed profile that no gateway uses appears in its message. In
// service-path mode, the spec has no profiles: an annotation of each pod names its folder.
func profilesValid(f *facts) *metav1.Condition {
	if f.Invalid != nil {
		return f.condition(metav1.ConditionFalse, failure.Reason(f.Invalid, v1alpha1.ReasonProfilesInvalid), f.Invalid.Error())
	}
	var valid, flawed []string
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.GatewaySync.Spec.Sync.Profiles)) {
		if err := f.Flawed[name]; err != nil {
			flawed, errs = append(flawed, name), append(errs, err)
		} else {
			valid = append(valid, name)
		}
	}
	message := "service-path mode: the spec has no profiles"
	switch {
	case len(valid) > 0:
		message = "valid: " + list(valid)
	case len(flawed) > 0:
		message = "valid: none"
	}
	if len(flawed) > 0 {
		message += fmt.Sprintf("; used by no gateway, and wrong: %s: %v", list(flawed), utilerrors.NewAggregate(errs))
	}
	if w := schedule.Unmatched(f.GatewaySync); w != "" {
		message += "; " + w
	}
	return f.condition(metav1.ConditionTrue, v1alpha1.ReasonProfilesValid, message)
}

// sidecarInjected returns the condition SidecarInjected from the pods without an agent, and why an evicted pod has no successor.
func sidecarInjected(f *facts, without []string, awaited string) *metav1.Condition {
	var problems []string
	if len(without) > 0 {
		problems = append(problems, fmt.Sprintf("%s without an agent: %s. Events of the pod say why it was not injected; delete the pod to try again",
			counted(len(without), "pod"), list(without)))
	}
	if awaited != "" {
		problems = append(problems, awaited)
	}
	if len(problems) == 0 {
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonSidecarInjected, "every pod that asks for an agent has one")
	}
	return f.condition(metav1.ConditionFalse, v1alpha1.ReasonMissingSidecar, strings.Join(problems, "; "))
}

// verdict is the state of the fleet for the condition Ready.
type verdict struct {
	status  metav1.ConditionStatus
	reason  v1alpha1.Reason
	message string
	short   string // what status.summary says instead of the reason, unless empty
}

// judge returns the first state of the fleet that applies.
func judge(f *facts) verdict {
	n, synced, paused, ref := len(f.fleet), f.fleet.synced(), f.GatewaySync.Paused(), f.refReason()
	say := func(status metav1.ConditionStatus, reason v1alpha1.Reason, message string) verdict {
		return verdict{status: status, reason: reason, message: message}
	}
	rolledBack := f.rollbackPrefix()
	switch {
	case f.Invalid != nil:
		return say(metav1.ConditionFalse, failure.Reason(f.Invalid, v1alpha1.ReasonProfilesInvalid), f.Invalid.Error())
	case f.Ref.Err != nil && (!f.resolved || ref.Class() == v1alpha1.ClassStalled) && !f.movedAway():
		return say(metav1.ConditionFalse, ref, refResolved(f).Message)
	case f.away != nil:
		return say(metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe())
	case n == 0:
		return say(metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(f.GatewaySync.Name))
	case !f.resolved:
		return say(metav1.ConditionFalse, v1alpha1.ReasonProgressing, f.polling())
	case f.rolling() && (!paused || f.Rollout.Phase == v1alpha1.RolloutAborted):
		return rolloutVerdict(f)
	case paused && (synced < n || f.rolling()):
		return say(metav1.ConditionFalse, v1alpha1.ReasonPaused, "paused; "+f.fleet.countSynced(f.describeTarget()))
	case paused:
		return say(metav1.ConditionTrue, v1alpha1.ReasonPaused, f.fleet.describeSynced(f.describeTarget())+"; paused")
	case synced == n && f.requestUnanswered():
		return say(metav1.ConditionFalse, ref, refResolved(f).Message)
	case synced == n:
		v := say(metav1.ConditionTrue, v1alpha1.ReasonSynced, rolledBack+f.fleet.describeSynced(f.describeTarget()))
		if rolledBack != "" {
			v.short = string(v1alpha1.ReasonRolledBack)
		}
		return v
	}
	return f.fleet.behind(f.describeTarget())
}

// movedAway reports whether the ref moved after all gateways took the requested commit. They run what was requested, so this is a warning
// (RefResolved) and not a failure.
func (f *facts) movedAway() bool {
	return f.refReason() == v1alpha1.ReasonRefMoved && f.resolved && f.away == nil && len(f.fleet) > 0 && f.fleet.synced() == len(f.fleet)
}

// allGatewaysSynced returns the condition AllGatewaysSynced, which describes the gateways alone: an unreachable git server does
// not change what they run.
func allGatewaysSynced(f *facts, v verdict) *metav1.Condition {
	switch n := len(f.fleet); {
	case f.away != nil:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe())
	case n == 0:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(f.GatewaySync.Name))
	case f.resolved && f.fleet.synced() == n && !f.rolling():
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonSynced, f.fleet.describeSynced(f.describeTarget()))
	case f.resolved && v.status != metav1.ConditionTrue && f.Ref.Err == nil:
		return f.condition(metav1.ConditionFalse, v.reason, v.message)
	case f.resolved && f.fleet.synced() == n: // the rollout goes on
		r := rolloutVerdict(f)
		return f.condition(metav1.ConditionFalse, r.reason, r.message)
	case f.resolved:
		b := f.fleet.behind(f.describeTarget())
		return f.condition(metav1.ConditionFalse, b.reason, b.message)
	}
	return f.condition(metav1.ConditionFalse, v1alpha1.ReasonProgressing, "the desired commit is not known yet")
}

const (
	// maxSummary bounds status.summary, in bytes.
	maxSummary = 64
	// maxNameWithReason bounds the result of nameWithReason, so that a line of kubectl get fits into 120 columns, unless other
	// columns have long names.
	maxNameWithReason = 44
)

// nameWithReason returns the summary for a gateway or a stage, a reason, and the number of others. It cuts a long name, but never
// the reason or the number.
func nameWithReason(name string, reason v1alpha1.Reason, others int) string {
	rest := ": " + string(reason)
	if others > 0 {
		rest += fmt.Sprintf("; %d more", others)
	}
	return failure.Cut(name, max(maxNameWithReason-len(rest), 8)) + rest
}

// summary returns status.summary of a verdict. overdue means that the progress deadline has passed.
func summary(f *facts, v verdict, overdue bool) string {
	s := v.short
	if s == "" {
		s = string(v.reason)
	}
	drifted := f.fleet.drifted()
	switch {
	case overdue:
		s = "overdue: " + s
	case v.status == metav1.ConditionTrue && f.Ref.Err != nil:
		s += "; git: " + string(f.refReason())
	case v.status == metav1.ConditionTrue && drifted > 0:
		s += fmt.Sprintf("; drift on %d", drifted)
	}
	return failure.Cut(s, maxSummary)
}
