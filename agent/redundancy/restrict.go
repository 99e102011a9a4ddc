package redundancy

import (
	"path"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
)

// Restrict removes from a plan what a standby node must not write, and counts it. Adoptions stay: a file that equals
// git is owned, whichever side wrote it. tree is the tree that the plan was made for.
func (n *Node) Restrict(changes *plan.Changes, tree *desired.Tree) (*plan.Changes, error) {
	if !n.place.standby {
		return changes, nil
	}
	n.missing = missing{}
	own := *changes
	own.List = make([]plan.Change, 0, len(changes.List))
	known := resourceFiles{dir: n.Dir, desired: tree, list: changes.List}
	var changed, strange []plan.Change
	for _, c := range changes.List {
		copied := c.Writes() && Replicated(c.Path)
		if copied {
			var err error
			if copied, err = known.has(c); err != nil {
				return nil, err
			}
		}
		if !copied {
			keep, err := n.mayRestore(changes, c)
			if err != nil {
				return nil, err
			}
			if keep {
				own.List = append(own.List, c)
			} else {
				own.Drifted++
			}
			continue
		}
		what, err := n.classify(changes, c)
		if err != nil {
			return nil, err
		}
		switch what {
		case equal:
		case edited:
			changed = append(changed, c)
		case unrecorded:
			strange = append(strange, c)
		case extra:
			own.Drifted++
		default:
			n.missing.add(c)
		}
	}
	own.Drifted += len(n.driftOf(changes, changed, strange))
	own.Held = n.stillHeld(changes.Held, own.List)
	return &own, nil
}

// mayRestore reports whether the policies allow a change that this node would make itself. The plan of a standby node
// restores everything that the pair may have copied, but a user may have changed a file that no pair copies, such as a
// README.
func (n *Node) mayRestore(changes *plan.Changes, c plan.Change) (bool, error) {
	if n.Repair || !Replicated(c.Path) || !c.Writes() {
		return true, nil
	}
	rec, owned, err := n.Dir.Manifest().Get(c.Path)
	return !owned || !asBefore(changes, c, rec), err
}

// stillHeld returns the reason to hold the plan after Restrict. Conflicts are only of files that the pair does not copy,
// and always hold. A mass deletion still holds if this node deletes any file itself: the active node is held for the
// same reason.
func (n *Node) stillHeld(held *plan.Held, list []plan.Change) *plan.Held {
	if held == nil || held.Reason == v1alpha1.ReasonConflictDetected {
		return held
	}
	if slices.ContainsFunc(list, func(c plan.Change) bool {
		return c.Op == plan.Delete || n.Rules.Conflict == plan.Hold && c.Conflict && c.Writes()
	}) {
		return held
	}
	return nil
}

// class is what a change to a replicated file means on a standby node.
type class int

const (
	behind     class = iota // the other node has to write it
	edited                  // restores what git wanted before, or replaces what the other node may have kept
	unrecorded              // replaces a file of which this node has no record
	extra                   // deletes a file of no commit that this node saw; nothing is missing
	equal                   // a resource.json as the gateway signed it, written only because of a file beside it
)

func (n *Node) classify(changes *plan.Changes, c plan.Change) (class, error) {
	rec, owned, err := n.Dir.Manifest().Get(c.Path)
	switch {
	case err != nil:
		return behind, err
	case !owned && c.Op == plan.Delete:
		return extra, nil
	case !owned && c.Found.Kind == plan.File:
		return unrecorded, nil
	case !owned:
		return behind, nil
	}
	touched := c.FoundID != rec.Have
	switch same := asBefore(changes, c, rec); {
	case same && signed(c.Path) && (!touched || !c.Conflict):
		return equal, nil
	case same, touched && n.Rules.Conflict == plan.GatewayWins:
		return edited, nil
	}
	return behind, nil
}

// signed reports whether the gateway rewrites a file when others of its resource change.
func signed(file string) bool {
	return path.Base(file) == resource.File || path.Base(file) == resource.Thumbnail
}

// asBefore reports whether a change only restores what git wanted at the last sync.
func asBefore(changes *plan.Changes, c plan.Change, rec plan.Owned) bool {
	return c.Op != plan.Delete && rec.Want == wantOf(changes, c) && rec.Exec == c.Exec
}

// wantOf returns git's blob for a change.
func wantOf(changes *plan.Changes, c plan.Change) plan.ID {
	if id, ok := changes.Signed[c.Path]; ok {
		return id
	}
	return c.ID
}
