package annotation

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"stoker.io/stoker/api/v1alpha1"
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
	// Restore is a snapshot of this gateway to restore: its id, a space, and the time of the request. The time is missing if the spec has
	// the request.
	Restore string
	// Retry is the value of stoker.io/retry. A new value that names the target makes the agent deliver it again after a rollback from it.
	Retry string
	// WindowApproved reports that a user approved the delivery of the target outside the maintenance windows.
	WindowApproved bool
}

// RequestsFor returns what gs asks of a gateway whose target is commit.
func RequestsFor(gs *v1alpha1.GatewaySync, gateway, commit string) Requests {
	r := Requests{Force: ForceSync(gs), ConfirmDeletion: ConfirmedDeletion(gs), Retry: Retry(gs), WindowApproved: WindowApproved(gs, commit)}
	if value := Propose(gs); ProposesFor(value, gateway) {
		r.Propose = value
	}
	if value := Restore(gs); RestoresOn(value, gateway) != "" {
		r.Restore = value
	}
	return r
}

// The annotations of Requests: those that change what a sync does, and those that make only the gateways that wait act.
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
