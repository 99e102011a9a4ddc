package annotation

import (
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// maxRetry limits the annotation stoker.io/retry, in bytes.
const maxRetry = 80

// Retry returns the value of the annotation stoker.io/retry, or "" if it is not a commit and a time.
func Retry(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationRetry]
	commit, requestedAt, _ := strings.Cut(value, " ")
	if _, err := time.Parse(time.RFC3339, requestedAt); err != nil || len(value) > maxRetry || len(commit) != 40 || !syntax.IsCommitPrefix(commit) {
		return ""
	}
	return value
}

// RetryValue returns the value of the annotation stoker.io/retry for a commit at a time.
func RetryValue(commit string, at time.Time) string {
	return commit + " " + at.UTC().Format(time.RFC3339)
}

// Retries reports whether a value of Retry names this commit.
func Retries(value, commit string) bool {
	retried, _, found := strings.Cut(value, " ")
	return found && retried == commit
}
