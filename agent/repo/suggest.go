package repo

import (
	"cmp"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/internal/failure"
)

const (
	maxSuggestions = 3
	maxSearch      = 5_000 // refs to compare
)

// suggestions returns names of refs that the user may have meant. They differ from name in case, in at most two bytes, or in
// everything before the last part.
func suggestions(name string, refs map[string]plan.ID) []string {
	want := shortName(name)
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	searched := 0
	for full := range refs {
		if searched++; searched > maxSearch {
			break
		}
		if refProblem(full) != "" || full == wire.HeadName {
			continue
		}
		short := shortName(full)
		switch d := distance(want, short, 2); {
		case strings.EqualFold(want, short):
			found = append(found, candidate{full, 0})
		case d <= 2 && d < len(want):
			found = append(found, candidate{full, d})
		case strings.EqualFold(lastPart(want), lastPart(short)):
			found = append(found, candidate{full, 3})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name))
	})
	names := make([]string, 0, maxSuggestions)
	for _, c := range found[:min(len(found), maxSuggestions)] {
		names = append(names, failure.Quote(shortName(c.name)))
	}
	return slices.Compact(names)
}

func shortName(full string) string {
	if s, ok := strings.CutPrefix(full, wire.BranchPrefix); ok {
		return s
	}
	return strings.TrimPrefix(full, wire.TagPrefix)
}

func lastPart(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }

// distance returns the Levenshtein distance in bytes, or limit+1 if it is larger than limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit || len(a) > 255 {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return min(row[len(b)], limit+1)
}
