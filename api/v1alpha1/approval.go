package v1alpha1

import (
	"regexp"
	"slices"
	"strings"
)

// AnnotationApproved has the last 17 approvals, separated by commas, the newest last. An approval is stage@commit with all 40 digits of
// the commit. window@commit lets a commit through closed maintenance windows. To change the annotation needs the right to approve.
const AnnotationApproved = "stoker.io/approved"

// WindowApproval replaces the name of the stage in an approval for the maintenance windows. No stage can have this name.
const WindowApproval = "window"

const (
	maxApprovals = MaxStages + 1 // one for each stage, and one for the windows
	// maxApproved limits the annotation stoker.io/approved, in bytes. 17 of the longest approvals fit, with spaces between them.
	maxApproved = 2048
)

var approval = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?@[0-9a-f]{40}$`)

// Approved reports whether a stage is approved for a commit.
func (gs *GatewaySync) Approved(stage, commit string) bool {
	return slices.Contains(approvals(gs.Annotations[AnnotationApproved]), stage+"@"+commit)
}

// WindowApproved reports whether there are maintenance windows, and a user approved the delivery of a commit outside of them.
func (gs *GatewaySync) WindowApproved(commit string) bool {
	return len(gs.MaintenanceWindows()) > 0 && gs.Approved(WindowApproval, commit)
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
