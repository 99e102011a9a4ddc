package annotation

import (
	"regexp"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	maxApprovals = v1alpha1.MaxStages + 1 // one for each stage, and one for the windows
	// maxApproved limits the annotation stoker.io/approved, in bytes. 17 of the longest approvals fit, with spaces between them.
	maxApproved = 2048
)

var approval = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?@[0-9a-f]{40}$`)

// Approved reports whether a stage is approved for a commit.
func Approved(gs *v1alpha1.GatewaySync, stage, commit string) bool {
	return slices.Contains(approvals(gs.Annotations[v1alpha1.AnnotationApproved]), stage+"@"+commit)
}

// WindowApproved reports whether there are maintenance windows, and a user approved the delivery of a commit outside of them.
func WindowApproved(gs *v1alpha1.GatewaySync, commit string) bool {
	return len(gs.MaintenanceWindows()) > 0 && Approved(gs, v1alpha1.WindowApproval, commit)
}

// Approve returns the value of the annotation stoker.io/approved with an approval of a stage for a commit added. It drops invalid entries
// and the oldest approvals. It adds nothing if the name of the stage or the commit is invalid.
func Approve(value, stage, commit string) string {
	list, entry := approvals(value), stage+"@"+strings.ToLower(commit)
	if approval.MatchString(entry) {
		list = append(slices.DeleteFunc(list, func(a string) bool { return a == entry }), entry)
	}
	return strings.Join(list[max(0, len(list)-maxApprovals):], ",")
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
	return list[max(0, len(list)-maxApprovals):]
}
