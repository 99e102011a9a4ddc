package v1alpha1

import "strings"

// minConfirm is the least number of digits of a commit that confirms a deletion.
const minConfirm = 7

// ConfirmedDeletion returns the commit that the annotation stoker.io/confirm-deletion names, or "" if there is none or
// its value is not a commit.
func (gs *GatewaySync) ConfirmedDeletion() string {
	commit := gs.Annotations[AnnotationConfirmDeletion]
	if !IsCommitPrefix(commit) {
		return ""
	}
	return commit
}

// IsCommitPrefix reports whether text is a commit in full, or its first 7 digits or more.
func IsCommitPrefix(text string) bool {
	return len(text) >= minConfirm && len(text) <= 40 && strings.Trim(text, "0123456789abcdef") == ""
}

// ConfirmsDeletion reports whether confirmed names commit.
func ConfirmsDeletion(confirmed, commit string) bool {
	return IsCommitPrefix(confirmed) && strings.HasPrefix(commit, confirmed)
}
