package v1alpha1

import "strings"

// ConfirmedDeletion returns the commit that the annotation stoker.io/confirm-deletion names, or "" if the
// annotation is missing or invalid.
func (gs *GatewaySync) ConfirmedDeletion() string {
	commit := gs.Annotations[AnnotationConfirmDeletion]
	if !IsCommitPrefix(commit) {
		return ""
	}
	return commit
}

// IsCommitPrefix reports whether text is a commit, or at least its first 7 digits, in lower case.
func IsCommitPrefix(text string) bool {
	return len(text) >= 7 && len(text) <= 40 && strings.Trim(text, "0123456789abcdef") == ""
}

// ConfirmsDeletion reports whether confirmed, a value of stoker.io/confirm-deletion, names commit.
func ConfirmsDeletion(confirmed, commit string) bool {
	return IsCommitPrefix(confirmed) && strings.HasPrefix(commit, confirmed)
}
