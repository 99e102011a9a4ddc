package planner

import (
	"fmt"
	"maps"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// parents checks that new files can be written: their parents must be directories, or be missing.
type parents struct {
	state   plan.State
	checked string            // the last directory that check found writable
	blocked map[string]string // file in place of a directory → a path that needs the directory
}

// check returns an error if path cannot be written because a parent is not a directory. If that parent is a file, the plan may still
// delete it: check then records it in blocked.
func (p *parents) check(path string) error {
	dir := relpath.Parent(path)
	if dir == "" || p.checked == dir {
		return nil
	}
	parent, kind, err := p.state.Blocked(path)
	switch {
	case err != nil:
		return fmt.Errorf("open the parents of %s: %w", path, err)
	case parent == "":
		p.checked = dir
		return nil
	case kind == plan.Link:
		return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link on the gateway, and git has %s "+
			"below it; the agent never follows links: replace the link with a directory", parent, path)
	case kind == plan.File:
		if _, ok := p.blocked[parent]; !ok {
			p.blocked[parent] = path
		}
		return nil
	}
	return errBlocked(parent, path)
}

// settle returns an error if a file in blocked remains, because the plan does not delete it.
func (p *parents) settle(deletes func(path string) bool) error {
	for _, file := range slices.Sorted(maps.Keys(p.blocked)) {
		if !deletes(file) {
			return errBlocked(file, p.blocked[file])
		}
	}
	return nil
}

func errBlocked(file, path string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "%s on the gateway is in the place of a directory that %s needs, and "+
		"the agent does not own it: delete it, or change the mapping", file, path)
}
