package sync

import (
	"stoker.io/stoker/agent/plan"
)

// guard holds a plan that must not be applied now.
type guard struct {
	in     *scope
	before gatewayState // before the first file moves
	memory *memory
}

// memory is what the Engine remembers of the plans that were held.
type memory struct {
	hold   hold
	review reviewResult
}

// hold identifies a plan that was staged and checked and then held. Its reason is the Held.Message of the plan, or "" if an
// open Designer holds it. While the same plan is held, its files are not staged again.
type hold struct {
	commit plan.ID
	rules  string
	reason string
}

func (g guard) holdFor(reason string) hold {
	return hold{g.in.t.Commit, g.in.rules.Fingerprint(), reason}
}

// checkProposals returns an error if the plan would replace changes that were made on the gateway and are still being
// proposed to git. A forced sync replaces them.
func (g guard) checkProposals(changes *plan.Changes) error {
	p := g.in.t.Proposals
	if p == nil || g.in.force {
		return nil
	}
	var paths []string
	for _, c := range changes.List {
		if c.Conflict && p.Watches(c.Path) {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return p.Replace(paths)
}
