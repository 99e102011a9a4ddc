// Package annotation reads and writes the annotations with which users request something of a GatewaySync without a change of its spec:
// an approval, a retry, a restored snapshot. Package desiredref evaluates those that request a ref.
package annotation

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Requests are what users ask of one gateway by annotations, besides a ref. A field is "" if the annotation is missing, invalid, or about
// another gateway.
type Requests struct {
	// Force is the value of stoker.io/force-sync. A new value makes the agent verify every file by its hash, repair differences, and
	// request a scan.
	Force string
	// ConfirmDeletion is the commit whose mass deletion an operator has approved, or its first digits.
	ConfirmDeletion string
	// Propose is the value of stoker.io/propose. A new value makes the agent propose the gateway's changes again, from the current base.
	// It does not affect syncs.
	Propose string
	// Restore is a snapshot of this gateway to restore: its id, and a space and the time of the request unless the spec has it. The time may be
	// missing in an annotation that a user wrote.
	Restore string
	// HiddenRestore is the snapshot of this gateway that the spec names, if Restore is another request, or if the caller has cleared Restore.
	HiddenRestore string
	// Retry is the value of stoker.io/retry. A new value that names the target commit makes the agent deliver it again after a rollback.
	Retry string
	// WindowApproved reports that a user approved the delivery of the target outside the maintenance windows.
	WindowApproved bool
}

// RestoreOfSpec returns the snapshot of this gateway that the spec names, or "". It is the request if it equals Restore.
func (r Requests) RestoreOfSpec() string {
	if r.Restore == "" || strings.Contains(r.Restore, " ") {
		return r.HiddenRestore
	}
	return r.Restore
}

// RequestsFor returns what gs asks of a gateway whose target is commit.
func RequestsFor(gs *v1alpha1.GatewaySync, gateway, commit string) Requests {
	r := Requests{Force: ForceSync(gs), ConfirmDeletion: ConfirmedDeletion(gs), Retry: Retry(gs), Restore: Restore(gs, gateway),
		WindowApproved: WindowApproved(gs, commit)}
	if ofSpec := restoreOfSpec(gs, gateway); ofSpec != r.Restore {
		r.HiddenRestore = ofSpec
	}
	if value := Propose(gs); ProposesFor(value, gateway) {
		r.Propose = value
	}
	return r
}

// maxForce limits the annotation stoker.io/force-sync, in bytes. The rest of a longer value is ignored.
const maxForce = 256

// ForceSync returns the value of the annotation stoker.io/force-sync. A new value makes the agents verify every managed file by its
// content, repair it, and request a scan.
func ForceSync(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationForceSync]
	return strings.ToValidUTF8(value[:min(len(value), maxForce)], "")
}

// maxLine limits the result of Line, in bytes.
const maxLine = 512

// Line returns text as one printable line of at most 512 bytes. An ellipsis ends a text that was cut.
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

const (
	maxApprovals = v1alpha1.MaxStages + 1 // one for each stage, and one for the windows
	// maxApproved limits the annotation stoker.io/approved, in bytes. 17 of the longest approvals fit, with spaces between them.
	maxApproved = 4096
)

// approval matches one entry of the annotation stoker.io/approved: a stage, a commit, and the user who approved, if the writer knew. The
// admission policy stoker-approvals accepts only the writer's own name.
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

// Approve adds an approval of a stage for a commit to value, a value of the annotation stoker.io/approved. by is the user of the API server
// who approves, or "" if unknown. Approve drops invalid entries, all but the newest 17 approvals, and a user name that an entry cannot hold. If
// the name of the stage or the commit is invalid, it adds nothing.
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

// maxRestore limits the annotation stoker.io/restore, in bytes.
const maxRestore = 288

// Restore returns the value of the annotation stoker.io/restore if it names a snapshot of this gateway, otherwise
// spec.rollback.toSnapshot if that does, otherwise "". Only the latter has no space: see Requests.RestoreOfSpec.
func Restore(gs *v1alpha1.GatewaySync, gateway string) string {
	value := gs.Annotations[v1alpha1.AnnotationRestore]
	if len(value) <= maxRestore && utf8.ValidString(value) && !strings.ContainsFunc(value, isControl) && RestoresOn(value, gateway) != "" {
		if !strings.Contains(value, " ") {
			value += " "
		}
		return value
	}
	return restoreOfSpec(gs, gateway)
}

func restoreOfSpec(gs *v1alpha1.GatewaySync, gateway string) string {
	if r := gs.Spec.Rollback; r != nil {
		return RestoresOn(r.ToSnapshot, gateway)
	}
	return ""
}

// RestoreValue returns the value of the annotation stoker.io/restore for a snapshot at a time.
func RestoreValue(snapshot string, at time.Time) string {
	return snapshot + " " + at.UTC().Format(time.RFC3339)
}

// RestoresOn returns the snapshot that a value of Restore names; "" if it is not one of this gateway.
func RestoresOn(value, gateway string) string {
	name, _, _ := strings.Cut(value, " ")
	id := syntax.SnapshotID(name)
	if id == "" || id[:len(id)-len("-"+syntax.StampFormat)] != gateway[:min(len(gateway), syntax.MaxGatewayName)] {
		return ""
	}
	return id
}

// The annotations of Requests: those that change what a sync does, and those that only propose changes or end a wait.
var (
	syncRequests  = []string{v1alpha1.AnnotationForceSync, v1alpha1.AnnotationConfirmDeletion, v1alpha1.AnnotationRestore, v1alpha1.AnnotationRetry}
	otherRequests = []string{v1alpha1.AnnotationPropose, v1alpha1.AnnotationApproved}
)

// hashDigits is the number of hexadecimal digits of one half of a hash.
const hashDigits = 32

// Hash returns the value of spec.requests of a SyncTarget for gs: a hash of the annotations of Requests. An agent follows the target only if
// its copy of the GatewaySync has the same hash, so that a SyncTarget says that something is requested, and never what.
func Hash(gs *v1alpha1.GatewaySync) string {
	return digest(gs, syncRequests) + digest(gs, otherRequests)
}

// SameSync reports whether two values of Hash ask the same of syncs.
func SameSync(a, b string) bool {
	return len(a) == 2*hashDigits && len(b) == 2*hashDigits && a[:hashDigits] == b[:hashDigits]
}

func digest(gs *v1alpha1.GatewaySync, names []string) string {
	h := sha256.New()
	for _, name := range names {
		value := gs.Annotations[name]
		_, _ = h.Write([]byte(strconv.Itoa(len(value)) + " " + value)) // the lengths keep two lists of values apart
	}
	return hex.EncodeToString(h.Sum(nil))[:hashDigits]
}
