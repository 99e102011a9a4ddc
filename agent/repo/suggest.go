package repo

import (
	"iter"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/suggest"
)

// suggestions returns names of refs that the user may have meant.
func suggestions(name string, refs map[string]plan.ID) []string {
	names := suggest.Names(shortName(name), shortNames(refs))
	for i := range names {
		names[i] = failure.Quote(names[i])
	}
	return names
}

func shortNames(refs map[string]plan.ID) iter.Seq[string] {
	return func(yield func(string) bool) {
		for full := range refs {
			if refProblem(full) == "" && full != wire.HeadName && !yield(shortName(full)) {
				return
			}
		}
	}
}

func shortName(full string) string {
	if s, ok := strings.CutPrefix(full, wire.BranchPrefix); ok {
		return s
	}
	return strings.TrimPrefix(full, wire.TagPrefix)
}
