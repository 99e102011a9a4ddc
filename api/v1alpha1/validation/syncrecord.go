package validation

import (
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// SyncRecordValid reports whether the API server accepts the record. One invalid record would make it reject the whole object.
func SyncRecordValid(r *v1alpha1.SyncRecord) bool {
	year := r.Timestamp.UTC().Year()
	return year >= 1000 && year <= 9999 && (r.Commit == "" || syntax.IsCommit(r.Commit) && r.Commit == strings.ToLower(r.Commit)) && len(r.Ref) <= 255 &&
		len(r.Duration) <= 32 && len(r.Result) <= 64 && (r.SnapshotID == "" || syntax.SnapshotID(r.SnapshotID) == r.SnapshotID)
}
