// Package suggest finds the names that a user may have meant instead of one that does not exist.
package suggest

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

const (
	maxNames  = 3
	maxSearch = 5_000 // names that are compared
)

// Names returns at most three of the names, the nearest first. They differ from want at most in case, in two bytes, or in
// everything before the last slash. If there are more than maxSearch names, it compares only the first ones.
func Names(want string, names iter.Seq[string]) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	searched := 0
	for name := range names {
		if searched++; searched > maxSearch {
			break
		}
		switch d := distance(want, name, 2); {
		case strings.EqualFold(want, name):
			found = append(found, candidate{name, 0})
		case d <= 2 && d < len(want):
			found = append(found, candidate{name, d})
		case strings.EqualFold(lastPart(want), lastPart(name)):
			found = append(found, candidate{name, 3})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name))
	})
	found = slices.Compact(found)
	list := make([]string, 0, maxNames)
	for _, c := range found[:min(len(found), maxNames)] {
		list = append(list, c.name)
	}
	return list
}

func lastPart(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }

// distance returns the Levenshtein distance in bytes, or limit+1 if it is larger than limit, or a too long to compare.
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
