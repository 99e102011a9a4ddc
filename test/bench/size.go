package main

import (
	"fmt"
	"slices"
)

// size is a synthetic repository, and what is measured of it.
type size struct {
	name     string
	files    int
	mean     int // mean size in bytes of a data file; about half of the files are short metadata
	binaries int // how many of the files are large (binaryBytes)
	past     int // commits before the measured ones
	commits  int // commits of the case "aged"
	agents   int // agents of the case "crowd"
	cases    []string
	// memory is the memory limit in bytes of each contestant's container; 0 means no limit.
	memory int64
	// alone omits the peer that copies a work tree, because it takes too long. The agents share one data directory.
	alone bool
}

var ordinary = []string{"first", "nothing", "one", "merge", "hundred", "adopt", "lost", "late"}

var sizes = []size{
	{name: "T", files: 60, mean: 2_000, past: 200, commits: 60, agents: 3, cases: append(slices.Clone(ordinary), "drift", "aged", "crowd")}, // for the bench's own test
	{name: "S", files: 1_000, mean: 16_000, past: 200, agents: 50, cases: append(slices.Clone(ordinary), "crowd")},
	{name: "M", files: 10_000, mean: 30_000, past: 200, commits: 1_000, cases: append(slices.Clone(ordinary), "drift", "aged")},
	{name: "L", files: 100_000, mean: 3_400, past: 200, cases: append(slices.Clone(ordinary), "drift")},
	{name: "H", files: 3_000, mean: 24_000, binaries: 6, past: 400, cases: []string{"first"}, memory: 64 << 20},
	{name: "G", files: 1_000_000, mean: 1_000, past: 200, cases: []string{"one", "drift"}, alone: true},
}

// String describes the size for the report.
func (s size) String() string {
	text := fmt.Sprintf("%d files, %d commits", s.files, s.past)
	if s.binaries > 0 {
		text += fmt.Sprintf(", %d of the files with %d MiB", s.binaries, binaryBytes>>20)
	}
	if s.memory > 0 {
		text += fmt.Sprintf("; in a container of %d MiB", s.memory>>20)
	}
	return text
}

func (s size) has(c benchCase) bool { return slices.Contains(s.cases, c.name) }

// rounds returns for how many rounds there are commits.
func (s size) rounds() int {
	if s.alone {
		return maxRounds / 2 // two agents follow the same line
	}
	return maxRounds
}
