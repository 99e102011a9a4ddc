package configsync

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

const (
	maxTargets    = 500 // rows of the status
	maxRowMessage = 256 // bytes of the message of one target
	// maxParallel bounds concurrent requests.
	maxParallel = 8
)

// targets are the objects that a run deals with, and how far it is with each.
type targets struct {
	owner    string    // see v1alpha1.ConfigSync.Owner
	objects  []*object // in the order of Plan.Items
	removals []*removal
}

// object is an object of the commit.
type object struct {
	want manifest.Object // with the annotations of plan.Mark, in its namespace
	item plan.Item
	live *unstructured.Unstructured // what was last seen of it
	// dry is what an apply would produce, and claim says who owns live.
	dry   *unstructured.Unstructured
	claim plan.Claim
	// extras are the fields that a person added, and that the apply removes.
	extras []fieldpath.Path
	// deferred means that the object cannot be planned before a kind or a namespace of the commit exists.
	deferred bool
	// recorded is the entry of the inventory for an object whose kind does not exist yet; nil if the inventory has none.
	recorded *manifest.Entry
	state    v1alpha1.ConfigTargetState
	fault    *failure.Error
}

// removal is an object of the inventory that the commit does not have.
type removal struct {
	manifest.Entry
	item  plan.Item
	live  *unstructured.Unstructured
	taken bool // another ConfigSync owns it
	done  bool // the object does not exist any more, or does not belong to the ConfigSync
	fault *failure.Error
	// forbidden means that the fault is a lack of rights.
	forbidden bool
}

// inventory returns the lines of the objects that the ConfigSync owns. While the run is not complete, these are also the objects that it may
// create.
func (t *targets) inventory(complete bool) []string {
	lines := []string{}
	for _, x := range t.objects {
		e := manifest.Entry{ID: x.want.ID()}
		if x.live != nil && (x.claim == plan.Ours || x.claim == plan.Unowned && plan.OwnerOf(x.live) == t.owner) {
			e.UID = x.live.GetUID()
		}
		if !complete && x.item.Action == plan.Recreate && x.state != v1alpha1.ConfigCreated {
			e.UID = "" // the recreated object gets another UID
		}
		switch {
		case e.UID != "" || !complete:
			lines = append(lines, e.String())
		case x.deferred && x.recorded != nil: // the run did not read it
			lines = append(lines, x.recorded.String())
		}
	}
	for _, x := range t.removals {
		if !x.done {
			lines = append(lines, x.String())
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// gone returns the objects of the inventory that do not exist any more, or do not belong to the ConfigSync.
func (t *targets) gone() map[manifest.ID]bool {
	gone := map[manifest.ID]bool{}
	for _, x := range t.removals {
		gone[x.ID] = x.done
	}
	return gone
}

// pruned returns the objects that the run deleted, and how many it could not delete.
func (t *targets) pruned() (deleted []string, failed int) {
	for _, x := range t.removals {
		switch {
		case x.item.Action != plan.Prune:
		case x.fault != nil:
			failed++
		case x.done && x.live != nil:
			deleted = append(deleted, x.ID.String())
		}
	}
	return deleted, failed
}

// progress is how far a run is with its targets.
type progress struct {
	rows []v1alpha1.ConfigTargetStatus
	// ready counts the objects that are applied or drifted, and healthy if health counts.
	ready int
	// started means that the run changed an object, and partial that an object is not applied.
	started, partial bool
}

// progress returns how far the run is. waits means that the health of objects counts.
func (t *targets) progress(waits bool) (p progress) {
	for _, x := range t.objects {
		row := x.row(waits)
		switch x.state {
		case v1alpha1.ConfigPending, v1alpha1.ConfigHeld, v1alpha1.ConfigFailed:
			p.partial = true
		default:
			p.started = p.started || x.state != v1alpha1.ConfigUnchanged && x.state != v1alpha1.ConfigDrifted
			if row.Healthy == nil || *row.Healthy {
				p.ready++
			}
		}
		p.rows = append(p.rows, row)
	}
	for _, x := range t.removals {
		if row, ok := x.row(); ok {
			p.rows = append(p.rows, row)
		}
	}
	slices.SortStableFunc(p.rows, func(a, b v1alpha1.ConfigTargetStatus) int { return cmp.Compare(rowRank(a), rowRank(b)) })
	p.rows = p.rows[:min(len(p.rows), maxTargets)]
	return p
}

func rowRank(row v1alpha1.ConfigTargetStatus) int {
	switch {
	case row.State == v1alpha1.ConfigFailed:
		return 0
	case row.State == v1alpha1.ConfigHeld:
		return 1
	case row.State == v1alpha1.ConfigPending:
		return 2
	case row.Healthy != nil && !*row.Healthy:
		return 3
	case row.State == v1alpha1.ConfigDrifted:
		return 4
	}
	return 5
}

// health returns the health of the object as it was last read.
func (x *object) health() apply.Health {
	if x.want.GetAnnotations()[v1alpha1.AnnotationConfigWait] == "disabled" {
		return apply.Health{Healthy: true}
	}
	h := apply.HealthOf(x.live)
	if x.want.Confidential() && !h.Healthy {
		h.Message = "it is not healthy" // a controller may repeat a value in its message
	}
	return h
}

// row returns the status row of an object of the commit.
func (x *object) row(waits bool) v1alpha1.ConfigTargetStatus {
	id := x.want.ID()
	row := v1alpha1.ConfigTargetStatus{Type: id.Type(), Namespace: id.Namespace, Name: id.Name, State: x.state, File: failure.Cut(x.want.File, 1024)}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, failure.Cut(x.fault.Error(), maxRowMessage)
		if x.fault.Reason.Class() == v1alpha1.ClassHeld {
			row.State = v1alpha1.ConfigHeld
		}
	case x.item.Action == plan.Hold:
		row.State, row.Reason, row.Message = v1alpha1.ConfigHeld, x.item.Reason, failure.Cut(x.item.Message, maxRowMessage)
	case x.live != nil && waits && x.state != v1alpha1.ConfigPending:
		h := x.health()
		row.Healthy = &h.Healthy
		if !h.Healthy {
			row.Reason, row.Message = v1alpha1.ReasonUnhealthy, failure.Cut(h.Message, maxRowMessage)
		}
	}
	if x.state == v1alpha1.ConfigDrifted && row.Message == "" {
		row.Message = failure.Cut("changed in the cluster: "+joinFirst(x.item.Fields), maxRowMessage)
	}
	return row
}

// row returns the status row of an object that git no longer has, or false if the status does not list it.
func (x *removal) row() (v1alpha1.ConfigTargetStatus, bool) {
	row := v1alpha1.ConfigTargetStatus{Type: x.Type(), Namespace: x.Namespace, Name: x.Name, State: v1alpha1.ConfigPruned}
	switch {
	case x.fault != nil:
		row.State, row.Reason, row.Message = v1alpha1.ConfigFailed, x.fault.Reason, failure.Cut(x.fault.Error(), maxRowMessage)
	case x.item.Action == plan.Keep:
		row.State, row.Message = v1alpha1.ConfigUnchanged, "git no longer has it: "+failure.Cut(x.item.Message, maxRowMessage)
	case x.item.Action == plan.Prune && !x.done:
		row.State = v1alpha1.ConfigPending
	case x.item.Action != plan.Prune || x.live == nil:
		return row, false
	}
	return row, true
}

// forEach calls do for every object without a fault, several at a time. It returns the first error.
func forEach(ctx context.Context, list []*object, do func(context.Context, *object) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for _, x := range list {
		if x.fault == nil {
			g.Go(func() error { return do(ctx, x) })
		}
	}
	return g.Wait()
}
