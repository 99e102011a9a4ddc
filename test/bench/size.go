package main

import (
	"fmt"
	"slices"

	"stoker.io/stoker/test/bench/repository"
)

// size is a synthetic repository, and what is measured of it.
type size struct {
	repository.Size // the Commits are those of the case "aged"

	agents int // agents of the case "crowd"
	cases  []string
	// memory is the memory limit in bytes of each contestant's container; 0 means no limit.
	memory int64
	// alone omits the peer that copies a work tree, because it takes too long. The agents share one data directory.
	alone bool
}

var ordinary = []string{"first", "nothing", "one", "merge", "hundred", "adopt", "lost", "late"}

var sizes = []size{
	{Size: repository.Size{Name: "T", Files: 60, Mean: 2_000, Past: 200, Commits: 60}, agents: 3, cases: append(slices.Clone(ordinary), "drift", "aged", "crowd")}, // for the bench's own test
	{Size: repository.Size{Name: "S", Files: 1_000, Mean: 16_000, Past: 200}, agents: 50, cases: append(slices.Clone(ordinary), "crowd")},
	{Size: repository.Size{Name: "M", Files: 10_000, Mean: 30_000, Past: 200, Commits: 1_000}, cases: append(slices.Clone(ordinary), "drift", "aged")},
	{Size: repository.Size{Name: "L", Files: 100_000, Mean: 3_400, Past: 200}, cases: append(slices.Clone(ordinary), "drift")},
	{Size: repository.Size{Name: "H", Files: 3_000, Mean: 24_000, Binaries: 6, Past: 400}, cases: []string{"first"}, memory: 64 << 20},
	{Size: repository.Size{Name: "G", Files: 1_000_000, Mean: 1_000, Past: 200}, cases: []string{"one", "drift"}, alone: true},
}

// String describes the size for the report.
func (s size) String() string {
	text := fmt.Sprintf("%d files, %d commits", s.Files, s.Past)
	if s.Binaries > 0 {
		text += fmt.Sprintf(", %d of the files with %d MiB", s.Binaries, repository.BinaryBytes>>20)
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
		return repository.MaxRounds / 2 // two agents follow the same line
	}
	return repository.MaxRounds
}
