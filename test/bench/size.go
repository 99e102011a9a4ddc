package main

import (
	"fmt"
	"slices"
)

// size is a synthetic repository, and what is measured of it.
type size struct {
	name     string
	files    int
	mean     int // bytes of a file that holds data; about half of the files are short metadata
	binaries int // how many of the files are large ones (binaryBytes)
	past     int // commits before those that are measured
	commits  int // commits of the case "aged"
	agents   int // agents of the case "crowd"
	cases    []string
	// memory confines the contestants to a container with a limit of so many bytes; 0 for no limit.
	memory int64
	// alone leaves out what takes too long: the peer that copies a work tree. The agents share one data directory.
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

// String is for people.
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

// rounds is how many rounds there are commits for.
func (s size) rounds() int {
	if s.alone {
		return maxRounds / 2 // two agents walk the same line
	}
	return maxRounds
}
