package format

import (
	"regexp"
	"strconv"
	"time"
)

// Names of files in .stoker.
const (
	ManifestFile = "manifest"
	JournalFile  = "journal"
	UndoFile     = "undo" // the journal of a run that is rolled back
)

// SlotName is the staging name of a change.
func SlotName(change int) string { return strconv.Itoa(change) }

// AsideName is the staging name of what a change replaced on a file system that cannot exchange two names.
func AsideName(change int) string { return strconv.Itoa(change) + ".old" }

var folderName = regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{7}(-\d{1,4})?(-undo)?$`)

// ValidFolderName reports whether s can be the name of a folder in lost+found.
func ValidFolderName(s string) bool { return folderName.MatchString(s) }

var snapshotName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-(\d{8}-\d{6})$`)

const snapshotTime = "20060102-150405"

// SnapshotName returns the name of a snapshot, which is its id: the gateway's name and a time in UTC.
func SnapshotName(gateway string, at time.Time) string {
	return gateway[:min(len(gateway), 200)] + "-" + at.UTC().Format(snapshotTime)
}

// ValidSnapshot reports whether s has the form of SnapshotName.
func ValidSnapshot(s string) bool { return !TimeOfSnapshot(s).IsZero() }

// TimeOfSnapshot returns the time in the name of a snapshot, or zero for another name.
func TimeOfSnapshot(s string) time.Time {
	m := snapshotName.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.Parse(snapshotTime, m[1]) // zero if there is no such day
	return t
}
