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
	maxApproved = 4096
)

// approval is one entry: a stage, a commit, and the user who approved, if the writer knew. The admission policy stoker-approvals accepts
// only the writer's own name.
var approval = regexp.MustCompile(`^([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)@([0-9a-f]{40})(?: ([!-+\--~]{1,128}))?$`)

// Approved reports whether a stage is approved for a commit.
func Approved(gs *v1alpha1.GatewaySync, stage, commit string) bool {
	return slices.ContainsFunc(approvals(gs.Annotations[v1alpha1.AnnotationApproved]), func(a []string) bool { return a[1] == stage && a[2] == commit })
}

// Approvers returns who approved a commit, as a text such as "prod by ann, window by bob". It names no user if the writer did not know.
func Approvers(gs *v1alpha1.GatewaySync, commit string) string {
	var list []string
	for _, a := range approvals(gs.Annotations[v1alpha1.AnnotationApproved]) {
		switch {
		case a[2] != commit:
		case a[3] == "":
			list = append(list, a[1])
		default:
			list = append(list, a[1]+" by "+a[3])
		}
	}
	return strings.Join(list, ", ")
}

// WindowApproved reports whether there are maintenance windows, and a user approved the delivery of a commit outside of them.
func WindowApproved(gs *v1alpha1.GatewaySync, commit string) bool {
	return len(gs.MaintenanceWindows()) > 0 && Approved(gs, v1alpha1.WindowApproval, commit)
}

// Approve returns the value of the annotation stoker.io/approved with an approval of a stage for a commit added, by a user of the API
// server or "" if unknown. It drops invalid entries and the oldest approvals, and names that an entry cannot hold. It adds nothing if the
// name of the stage or the commit is invalid.
func Approve(value, stage, commit, by string) string {
	entry := stage + "@" + strings.ToLower(commit)
	added := approval.FindStringSubmatch(entry)
	valid := added != nil && added[3] == ""
	if named := entry + " " + by; approval.MatchString(named) {
		entry = named
	}
	var list []string
	for _, a := range approvals(value) {
		if !valid || a[1] != added[1] || a[2] != added[2] {
			list = append(list, a[0])
		}
	}
	if valid {
		list = append(list, entry)
	}
	return strings.Join(list[max(0, len(list)-maxApprovals):], ",")
}

// approvals returns the approvals in a value of the annotation, at most 17, newest last: the entry, its stage, its commit and its user.
func approvals(value string) [][]string {
	if len(value) > maxApproved {
		return nil
	}
	var list [][]string
	for entry := range strings.SplitSeq(value, ",") {
		if a := approval.FindStringSubmatch(strings.TrimSpace(entry)); a != nil {
			list = append(list, a)
		}
	}
	return list[max(0, len(list)-maxApprovals):]
}
