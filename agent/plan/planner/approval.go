package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// heldPaths is the maximum number of paths in Held.Paths.
const heldPaths = 10

// settleDirs decides about paths at which git has a file and the gateway has a directory. The file can replace the directory only if
// this plan deletes every file in the directory. Otherwise the conflict policy decides.
func (p *planner) settleDirs() error {
	for _, dir := range p.dirs {
		remaining, err := remainingFile(p.State, dir, p.deletes)
		if err != nil {
			return err
		}
		if remaining == "" {
			continue
		}
		switch p.conflictPolicy(dir) {
		case plan.GitWins:
			return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory there "+
				"with files that this sync does not delete, such as %s: move or delete the files in it", dir, remaining)
		case plan.Hold:
			p.conflicts[dir] = true
		case plan.GatewayWins:
			p.find(dir).Op = plan.Keep
		}
	}
	return nil
}

// remainingFile returns the first file below dir that a plan does not delete, or "".
func remainingFile(state plan.State, dir string, deletes func(path string) bool) (string, error) {
	for f, err := range state.Walk(dir) {
		if err != nil {
			return "", fmt.Errorf("walk %s: %w", dir, err)
		}
		if !deletes(f.Path) {
			return f.Path, nil
		}
	}
	return "", nil
}

// holdForApproval holds a mass deletion and a plan with conflicts until an operator decides.
func (p *planner) holdForApproval() error {
	held := heldConflicts(p.conflicts)
	if !p.AllowMassDeletion {
		deletion, err := findMassDeletion(p.list, p.lost, p.Desired)
		if err != nil {
			return err
		}
		mass := deletion.held(p.owned)
		if mass != nil && held != nil {
			mass.Message += "; also, " + held.Message
		}
		if mass != nil {
			held = mass
		}
	}
	p.changes.Held = held
	return nil
}

// heldConflicts returns a Held that lists the conflicts, or nil if there are none.
func heldConflicts(conflicts map[string]bool) *plan.Held {
	if len(conflicts) == 0 {
		return nil
	}
	paths := slices.Sorted(maps.Keys(conflicts))
	return &plan.Held{
		Reason: v1alpha1.ReasonConflictDetected,
		Message: fmt.Sprintf("the gateway and git have different versions of %s (%s), and conflictPolicy is hold: "+
			"choose one version, or set another conflictPolicy", files(len(conflicts)), plan.Enumerate(paths, heldPaths)),
		Paths: slices.Clone(paths[:min(len(paths), heldPaths)]),
	}
}

func files(n int) string { return strconv.Itoa(n) + " " + plural(n, "file") }

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
