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
