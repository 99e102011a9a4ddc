package annotation

import (
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// ConfirmedDeletion returns the commit that the annotation stoker.io/confirm-deletion names, or "" if the
// annotation is missing or invalid.
func ConfirmedDeletion(gs *v1alpha1.GatewaySync) string {
	commit := gs.Annotations[v1alpha1.AnnotationConfirmDeletion]
	if !syntax.IsCommitPrefix(commit) {
		return ""
	}
	return commit
}

// ConfirmsDeletion reports whether confirmed, a value of stoker.io/confirm-deletion, names commit.
func ConfirmsDeletion(confirmed, commit string) bool {
	return syntax.IsCommitPrefix(confirmed) && strings.HasPrefix(commit, confirmed)
}
