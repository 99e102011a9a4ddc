package desired

import (
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// minDirs is the number of directories that a walk may always enter, however low the limit of files is.
const minDirs = 10_000

// counter counts the directories and files of one walk, and ends the walk at the limits. It counts during the walk,
// because fifteen trees that reference each other ten times each already stand for more paths than any machine can
// visit.
type counter struct {
	dirs, files int
}

func (t *counter) dir(l *plan.Limits) error {
	limit := max(l.Files, minDirs)
	if t.dirs++; t.dirs > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the mappings bring more than %d directories: map or exclude less, "+
			"or raise --max-files, which also limits directories", limit)
	}
	return nil
}

func (t *counter) file(l *plan.Limits) error {
	t.files++
	return l.CheckFiles(t.files)
}
