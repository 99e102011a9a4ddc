package v1alpha1

import (
	"regexp"
	"slices"
	"strings"
)

// AnnotationApproved holds the last 17 approvals, each as stage@commit with all 40 digits of the commit, with commas between them and the
// newest last. window@commit lets a commit through a closed maintenance window. Changing it takes the right to approve.
const AnnotationApproved = "stoker.io/approved"

// WindowApproval stands for the maintenance windows in an approval, instead of the name of a stage. No stage has this name.
const WindowApproval = "window"

const (
	keptApprovals = MaxStages + 1 // of all stages of a rollout, and of the windows
	// maxApproved bounds the annotation stoker.io/approved, in bytes. 17 of the longest approvals and spaces between them fit.
	maxApproved = 2048
)

var approval = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?@[0-9a-f]{40}$`)

// Approved reports whether a stage of the rollout of a commit is approved. An approval names its commit in full and counts for no other.
func (gs *GatewaySync) Approved(stage, commit string) bool {
	return slices.Contains(approvals(gs.Annotations[AnnotationApproved]), stage+"@"+commit)
}

// WindowApproved reports whether a user approved to deliver a commit although no maintenance window allows it.
func (gs *GatewaySync) WindowApproved(commit string) bool {
	return len(gs.MaintenanceWindows()) > 0 && gs.Approved(WindowApproval, commit)
}

// Approve returns a value of the annotation stoker.io/approved that also approves a stage of the rollout of a commit. It drops the oldest
// approvals and what is not one. It approves nothing if the stage is not a name of a stage or the commit is not one in full.
func Approve(value, stage, commit string) string {
	list, entry := approvals(value), stage+"@"+strings.ToLower(commit)
	if approval.MatchString(entry) {
		list = append(slices.DeleteFunc(list, func(a string) bool { return a == entry }), entry)
	}
	return strings.Join(list[max(0, len(list)-keptApprovals):], ",")
}

// approvals returns the approvals in a value of the annotation, at most 17, newest last.
func approvals(value string) []string {
	if len(value) > maxApproved {
		return nil
	}
	var list []string
	for entry := range strings.SplitSeq(value, ",") {
		if entry = strings.TrimSpace(entry); approval.MatchString(entry) {
			list = append(list, entry)
		}
	}
	return list[max(0, len(list)-keptApprovals):]
}
