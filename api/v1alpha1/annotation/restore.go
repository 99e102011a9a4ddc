package annotation

import (
	"strings"
	"time"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// maxRestore limits the annotation stoker.io/restore, in bytes.
const maxRestore = 288

// Restore returns the value of the annotation stoker.io/restore if it names a snapshot, otherwise spec.rollback.toSnapshot, which may be "".
func Restore(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationRestore]
	if len(value) <= maxRestore && utf8.ValidString(value) && !strings.ContainsFunc(value, isControl) && restoredSnapshot(value) != "" {
		return value
	}
	if r := gs.Spec.Rollback; r != nil {
		return syntax.SnapshotID(r.ToSnapshot)
	}
	return ""
}

// RestoreValue returns the value of the annotation stoker.io/restore for a snapshot at a time.
func RestoreValue(snapshot string, at time.Time) string {
	return snapshot + " " + at.UTC().Format(time.RFC3339)
}

// RestoresOn returns the snapshot that a value of Restore names; "" if it is not one of this gateway.
func RestoresOn(value, gateway string) string {
	id := restoredSnapshot(value)
	if id == "" || id[:len(id)-len("-"+syntax.StampFormat)] != gateway[:min(len(gateway), syntax.MaxGatewayName)] {
		return ""
	}
	return id
}

func restoredSnapshot(value string) string {
	name, _, _ := strings.Cut(value, " ")
	return syntax.SnapshotID(name)
}
