package planner

import (
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// policies decide which version of a file wins.
type policies struct {
	rules   *plan.Rules
	in      *Input
	mirrors []string // the directories that prune mirror cleans
}

// conflictPolicy returns the conflict policy for a path.
func (p *policies) conflictPolicy(path string) plan.ConflictPolicy {
	if p.in.replicated(path) || p.in.GitWins != nil && p.in.GitWins(path) {
		return plan.GitWins
	}
	return p.rules.Conflict
}

// repairs reports whether git's version replaces a file that only the gateway changed. Under gatewayWins, a file that
// was once kept against git stays.
func (p *policies) repairs(rec plan.Owned) bool {
	if p.in.replicated(rec.Path) {
		return true
	}
	return p.in.Repair && !p.in.proposed(rec.Path) && (p.rules.Conflict != plan.GatewayWins || rec.Have == rec.Want)
}

// mirrored reports whether prune mirror deletes a file at path that git does not have.
func (p *policies) mirrored(path string) bool {
	return !p.in.proposed(path) && slices.ContainsFunc(p.mirrors, func(dir string) bool { return relpath.Below(path, dir) })
}
