// Package plan decides what a run of a ConfigSync does with each object. A plan is a pure value that prints; no part of it holds a
// value of an object, so that it can be shown to readers who may not read Secrets.
//
//	live object                            | what the run does
//	---------------------------------------|--------------------------------------------------
//	does not exist                         | Create
//	owned, equals git                      | Unchanged
//	owned, git changed                     | Configure
//	owned, the cluster or a user changed   | Repair, or Drift with driftPolicy report
//	owned, an immutable field changed      | Refuse (ImmutableField), or Recreate with stoker.io/recreate: enabled
//	owned by none, equals git              | Configure: the ConfigSync adopts it
//	owned by none, differs from git        | Hold (NotOwned), or Configure with adoptPolicy always
//	owned by another ConfigSync            | Hold (NotOwned)
//	refused by the API server              | Refuse, or Hold if another manager owns its fields
//	in the inventory, not in git           | Prune, Keep or Release: see DecideRemoval
//
// A ConfigSync owns what its inventory (status.inventory) lists with the UID of the live object. The annotations of the object do not
// matter, unless they name another ConfigSync that lists it, too. The owner of any other object is named by its mark, the annotation
// stoker.io/configsync.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// Action is what happens to an object.
type Action string

// The actions.
const (
	Create    Action = "create"
	Configure Action = "configure"
	Recreate  Action = "recreate" // delete and create, because an immutable field changed
	Repair    Action = "repair"
	Drift     Action = "drifted" // changed in the cluster, and not repaired
	Unchanged Action = "unchanged"
	Hold      Action = "held"
	Refuse    Action = "refused"
	Prune     Action = "prune"
	Keep      Action = "keep"    // not in git any more, but not deleted
	Release   Action = "release" // does not belong to the ConfigSync any more
)

// summaryOrder lists the actions in the order of a summary.
var summaryOrder = []struct {
	action Action
	text   string
}{
	{Create, "to create"}, {Configure, "to configure"}, {Recreate, "to recreate"}, {Repair, "to repair"}, {Drift, "drifted"}, {Unchanged, "unchanged"}, {Prune, "to prune"},
	{Keep, "to keep"}, {Release, "released"}, {Hold, "held"}, {Refuse, "refused"},
}

// Item is what happens to one object.
type Item struct {
	manifest.ID
	Action Action
	File   string
	// Fields are the paths that change, without values.
	Fields []string
	// Reason says why an object is held or refused, or why it cannot be pruned. Message explains the action, if it needs that.
	Reason  v1alpha1.Reason
	Message string
}

// Writes reports whether the object is applied.
func (i Item) Writes() bool {
	return i.Action == Create || i.Action == Configure || i.Action == Recreate || i.Action == Repair
}

// Plan is what a run does.
type Plan struct {
	Ref, Commit string
	// Items are the objects of the commit, in the order in which they are applied.
	Items []Item
	// Removals are the objects of the inventory that the commit does not have, in the order in which they are pruned.
	Removals []Item
	// Owned is the number of objects that the ConfigSync owns before the run.
	Owned int
}

// massThreshold is the number of deletions above which the deletion of more than half of the objects is a mass deletion.
const massThreshold = 5

// Pruned returns the number of objects that are deleted.
func (p *Plan) Pruned() int { return count(p.Removals, Prune) }

// Drifted returns the number of objects that were changed in the cluster and stay so.
func (p *Plan) Drifted() int { return count(p.Items, Drift) }

// IsMassDeletion reports whether the plan deletes so much that a user has to confirm it: everything, or more than half and more than five
// objects.
func (p *Plan) IsMassDeletion() bool {
	n := p.Pruned()
	return n > 0 && (len(p.Items) == 0 || n > massThreshold && 2*n > p.Owned)
}

// Changes reports whether the plan changes anything in the cluster.
func (p *Plan) Changes() bool {
	return p.Pruned() > 0 || slices.ContainsFunc(p.Items, Item.Writes)
}

func count(list []Item, action Action) (n int) {
	for _, i := range list {
		if i.Action == action {
			n++
		}
	}
	return n
}

// maxNamed is the number of objects that an error names.
const maxNamed = 5

// severity orders reasons: problems that a user must fix in git or the spec come before those that a retry may solve.
func severity(r v1alpha1.Reason) int {
	switch r.Class() {
	case v1alpha1.ClassStalled:
		return 0
	case v1alpha1.ClassHeld:
		return 1
	}
	return 2
}

// Problem returns why nothing of the plan may be applied, or nil. confirmed says that a user confirmed a mass deletion.
func (p *Plan) Problem(confirmed bool) error {
	var bad []Item
	for _, i := range p.Items {
		if i.Action == Hold || i.Action == Refuse {
			bad = append(bad, i)
		}
	}
	if len(bad) > 0 {
		slices.SortStableFunc(bad, func(a, b Item) int { return cmp.Compare(severity(a.Reason), severity(b.Reason)) })
		var parts []string
		for _, i := range bad[:min(len(bad), maxNamed)] {
			parts = append(parts, fmt.Sprintf("%s: %s", i.ID, i.Message))
		}
		if more := len(bad) - maxNamed; more > 0 {
			parts = append(parts, fmt.Sprintf("and %d more", more))
		}
		return failure.New(bad[0].Reason, "nothing was changed: %s", strings.Join(parts, "; "))
	}
	if p.IsMassDeletion() && !confirmed {
		return failure.New(v1alpha1.ReasonMassDeletion,
			"nothing was changed: commit %.7s deletes %d of %d objects; confirm it with the annotation %s: %.7s", p.Commit, p.Pruned(), p.Owned,
			v1alpha1.AnnotationConfirmDeletion, p.Commit)
	}
	return nil
}

// Summary counts the objects in one line.
func (p *Plan) Summary() string {
	var parts []string
	for _, o := range summaryOrder {
		if n := count(p.Items, o.action) + count(p.Removals, o.action); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o.text))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no objects"}
	}
	return strings.Join(parts, ", ")
}

// maxPrintedFields bounds the fields that a line lists.
const maxPrintedFields = 10

// String returns the summary, and a line for each object that is not unchanged.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %.7s: %s\n", cmp.Or(p.Ref, "commit"), p.Commit, p.Summary())
	for _, i := range slices.Concat(p.Items, p.Removals) {
		if i.Action == Unchanged {
			continue
		}
		fmt.Fprintf(&b, "%-10s %s", i.Action, i.ID)
		if n := len(i.Fields); n > 0 {
			fmt.Fprintf(&b, ": %s", strings.Join(i.Fields[:min(n, maxPrintedFields)], ", "))
			if n > maxPrintedFields {
				fmt.Fprintf(&b, " and %d more", n-maxPrintedFields)
			}
		}
		if i.Reason != "" {
			fmt.Fprintf(&b, ": %s", i.Reason)
		}
		if i.Message != "" {
			fmt.Fprintf(&b, ": %s", strings.Join(strings.Fields(i.Message), " "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
