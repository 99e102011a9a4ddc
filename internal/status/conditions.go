package status

import "stoker.io/stoker/api/v1alpha1"

// Condition is a row of the table of conditions. To add one, add a row with a function that sets it, and run
// `go test ./internal/status -update`, which writes the table of the documentation.
type Condition struct {
	Type string
	// True, False and Unknown say when the condition has this status; empty if it never has.
	True, False, Unknown string
	// set sets or removes the condition. It is nil for conditions that follow from the state of the whole fleet.
	set func(*writer)
}

// Conditions lists the conditions of a GatewaySync.
var Conditions = []Condition{
	{Type: v1alpha1.ConditionReady, True: "every discovered gateway reports the target commit for the current generation, verified", False: "see the reason",
		Unknown: "no gateway was discovered, or no agent runs"},
	{Type: v1alpha1.ConditionAllGatewaysSynced, True: "the same, whether or not git can be reached", False: "a gateway does not run the commit yet",
		Unknown: "no gateway was discovered, or no agent runs"},
	{Type: v1alpha1.ConditionRefResolved, True: "the desired ref has a commit", False: "git cannot be reached, or has no such ref", Unknown: "git was not polled yet",
		set: (*writer).setRefResolved},
	{Type: v1alpha1.ConditionSSHHostKeyVerification, True: "the git host showed a trusted key", False: "it did not, or it is not checked",
		Unknown: "it was not reached yet; absent for repositories without ssh", set: (*writer).setHostKey},
	{Type: v1alpha1.ConditionProfilesValid, True: "the spec is valid; the message also names invalid profiles that no gateway uses",
		False: "a field is wrong; the message names it", set: (*writer).setProfiles},
	{Type: v1alpha1.ConditionSidecarInjected, True: "every pod that asks for an agent has one", False: "the message names the pods without one",
		set: func(w *writer) { w.setSidecars(w.podsWithoutAgent(), "") }},
	{Type: v1alpha1.ConditionBidirectionalReady, True: "changes made on gateways can be proposed; the message counts the pull requests",
		False: "the message names a gateway whose changes are not proposed; absent if no profile proposes any", set: (*writer).setProposals},
	{Type: v1alpha1.ConditionReconciling, True: "work is under way; absent otherwise"},
	{Type: v1alpha1.ConditionStalled, True: "a user has to act; absent otherwise"},
}
