package repo

import (
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
)

const (
	maxNear   = 3
	maxSearch = 5_000 // refs that are compared for advice
)

// nearest returns the names that somebody may have meant: equal but for case, or for their last part, or for two letters.
func nearest(name string, all map[string]plan.ID) []string {
	want := shortName(name)
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	searched := 0
	for full := range all {
		if searched++; searched > maxSearch {
			break
		}
		if refProblem(full) != "" || full == headName {
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
		if a.distance != b.distance {
			return a.distance - b.distance
		}
		return strings.Compare(a.name, b.name)
	})
	names := make([]string, 0, maxNear)
	for _, c := range found[:min(len(found), maxNear)] {
		names = append(names, quoted(shortName(c.name)))
	}
	return slices.Compact(names)
}

func shortName(full string) string {
	if s, ok := strings.CutPrefix(full, branchSpace); ok {
		return s
	}
	return strings.TrimPrefix(full, tagSpace)
}

func lastPart(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }

// distance is the number of letters to change, add or leave out; anything over limit is limit+1.
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
