// Package annotation reads and writes the annotations with which users request something of a GatewaySync without a change of its spec:
// an approval, a retry, a restored snapshot. Package desiredref evaluates those that request a ref.
package annotation

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// maxForce limits the annotation stoker.io/force-sync, in bytes. The rest of a longer value is ignored.
const maxForce = 256

// ForceSync returns the value of the annotation stoker.io/force-sync. A new value makes the agents verify every managed file by its
// content, repair it, and request a scan.
func ForceSync(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationForceSync]
	return strings.ToValidUTF8(value[:min(len(value), maxForce)], "")
}

// maxLine limits the annotation stoker.io/requested-for, in bytes.
const maxLine = 512

// Line returns text as a value of stoker.io/requested-for: one printable line of at most 512 bytes.
func Line(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 2*maxLine)], ""), func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine-len("…")], "") + "…"
	}
	return text
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

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

// maxPropose limits the annotation stoker.io/propose, in bytes.
const maxPropose = 320

// Propose returns the value of the annotation stoker.io/propose, or "" if it is too long or not one line of text.
func Propose(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationPropose]
	if len(value) > maxPropose || !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		return ""
	}
	return value
}

// ProposeValue returns the value of the annotation stoker.io/propose for a gateway at a time.
func ProposeValue(gateway string, at time.Time) string {
	return gateway + " " + at.UTC().Format(time.RFC3339)
}

// ProposesFor reports whether a value of the annotation stoker.io/propose names this gateway.
func ProposesFor(value, gateway string) bool {
	name, _, _ := strings.Cut(value, " ")
	return name != "" && name == gateway
}

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
