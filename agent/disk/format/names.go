package format

import (
	"regexp"
	"strconv"
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

// ValidLostFoundName reports whether s can be the name of a folder in lost+found.
func ValidLostFoundName(s string) bool { return folderName.MatchString(s) }

// TreeName is the staging name of the directory Dirs[index] of the journal, which is staged with all its files.
func TreeName(index int32) string { return "d" + strconv.Itoa(int(index)) }
