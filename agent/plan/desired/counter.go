package desired

import (
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// minDirs is the number of directories that a walk may always enter, however low the limit of files is.
const minDirs = 10_000

// counter counts the directories and files of one walk, and ends the walk at the limits. It counts during the walk, because a small
// repository can have endless paths: 15 nested trees that each list the next one ten times have 10^15.
type counter struct {
	dirs, files int
}

func (c *counter) addDir(l *plan.Limits) error {
	limit := max(l.Files, minDirs)
	if c.dirs++; c.dirs > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the mappings bring more than %d directories: map or exclude less, "+
			"or raise --max-files, which also limits directories", limit)
	}
	return nil
}

func (c *counter) addFile(l *plan.Limits) error {
	c.files++
	return l.CheckFiles(c.files)
}
