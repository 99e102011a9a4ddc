package configsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Bounds of the requests of a run. The burst is enough to read 500 objects.
const (
	requestBurst      = 600
	requestsPerSecond = 100
)

// planner reads what is in the cluster, and plans what a run does. It changes nothing there.
type planner struct {
	cs     *v1alpha1.ConfigSync // with the status of the last run
	client *apply.Client
	// entries are the entries of the inventory.
	entries map[manifest.ID]manifest.Entry
	owners  *owners
	// kinds (with their scopes) and namespaces are those that objects of the commit define.
	kinds      map[string]string
	namespaces map[string]bool
}

func (e *Engine) newPlanner(ctx context.Context, cs *v1alpha1.ConfigSync, clients kube.Clients) (*planner, error) {
	target, err := e.clusterClients(ctx, cs, clients)
	if err != nil {
		return nil, err
	}
	fast, err := target.WithRate(requestsPerSecond, requestBurst, target.Config.Timeout)
	if err != nil {
		return nil, err
	}
	readers := clients
	if e.StatusClients != nil { // the account of a run need not be able to read ConfigSyncs
		readers = *e.StatusClients
	}
	return &planner{cs: cs, client: apply.New(fast.Dynamic, target.Core.Discovery(), cs), entries: inventoryEntries(cs),
		owners: &owners{clients: readers, elsewhere: cs.Spec.KubeConfig != nil}}, nil
}

// inventoryEntries parses the inventory of the status. It ignores a second line of the same object.
func inventoryEntries(cs *v1alpha1.ConfigSync) map[manifest.ID]manifest.Entry {
	entries := map[manifest.ID]manifest.Entry{}
	for _, line := range cs.Status.Inventory {
		e, ok := manifest.ParseEntry(line)
		if _, twice := entries[e.ID]; ok && !twice {
			entries[e.ID] = e
		}
	}
	return entries
}

// objects returns the objects of the commit: marked, in their namespaces, and in the order in which they are applied.
func (p *planner) objects(list []manifest.Object) ([]*object, error) {
	p.findPrerequisites(list)
	var objects []*object
	seen := map[manifest.ID]bool{}
	for _, o := range list {
		want, err := plan.Mark(o, p.cs.Owner())
		if err != nil {
			return nil, err
		}
		x := &object{want: want, state: v1alpha1.ConfigPending}
		err = p.client.ResolveNamespace(want)
		own, unknown := errors.AsType[*failure.Error](err)
		if scope := p.kinds[want.ID().Type()]; unknown && scope != "" {
			x.deferred = true
			if scope != "Namespaced" { // the inventory has to name the object before its kind is served
				want.SetNamespace("")
			} else if want.GetNamespace() == "" {
				want.SetNamespace(p.cs.Namespace)
			}
		}
		id := want.ID()
		switch {
		case unknown && !x.deferred:
			x.fault = own
		case err != nil && !x.deferred:
			return nil, fmt.Errorf("ask the API server for its kinds: %w", err)
		case seen[id]:
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is in the commit twice, once with and once without its namespace: keep one of them", id)
		}
		seen[id] = true
		objects = append(objects, x)
	}
	slices.SortStableFunc(objects, func(a, b *object) int {
		i, j := a.want.ID(), b.want.ID()
		return cmp.Or(cmp.Compare(i.Rank(), j.Rank()), i.Compare(j))
	})
	return objects, nil
}

// findPrerequisites sets kinds and namespaces.
func (p *planner) findPrerequisites(list []manifest.Object) {
	p.kinds, p.namespaces = map[string]string{}, map[string]bool{}
	for _, o := range list {
		switch id := o.ID(); {
		case id.IsNamespace():
			p.namespaces[id.Name] = true
		case id.IsCRD():
			group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
			p.kinds[manifest.ID{Group: group, Kind: kind}.Type()], _, _ = unstructured.NestedString(o.Object, "spec", "scope")
		}
	}
}

// planObject sets the item or the fault of an object. It reads and dry-runs the object as far as the plan needs it. If the object changes
// meanwhile, planObject plans it again, at most maxConflicts times.
func (p *planner) planObject(ctx context.Context, x *object) error {
	if x.deferred {
		x.recorded = p.inventoryEntry(x.want.ID())
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its kind"}
		return nil
	}
	for conflicts := 0; ; conflicts++ {
		again, err := p.tryPlanObject(ctx, x)
		if !again || conflicts == maxConflicts {
			return err
		}
	}
}

// maxNewAge is the greatest age of an object that a dry run has just created: the clocks of the API server and of this machine may differ. An
// older object was not created by the dry run. It exists, although its API reports no resource version.
const maxNewAge = 5 * time.Minute

// planNew plans an object that does not exist, with a dry run alone: its result has no resource version only if the object is new. If the
// object exists, is refused or was applied before, planNew returns false, and the caller reads the object.
func (p *planner) planNew(ctx context.Context, x *object) bool {
	if _, listed := p.entries[x.want.ID()]; listed {
		return false
	}
	dry, err := p.client.DryRun(ctx, x.want)
	if err != nil || dry.GetResourceVersion() != "" || time.Since(dry.GetCreationTimestamp().Time) > maxNewAge {
		return false
	}
	x.live, x.dry, x.claim = nil, dry, plan.Unowned
	x.item = plan.Decide(x.want, nil, dry, p.cs.Spec.Apply.AdoptPolicy, x.claim)
	return true
}

// tryPlanObject is one attempt of planObject, for an object whose kind exists. If the object changed in the meantime, it returns true, and an
// error for the case that there is no other attempt.
func (p *planner) tryPlanObject(ctx context.Context, x *object) (again bool, err error) {
	if p.planNew(ctx, x) {
		return false, nil
	}
	if x.live, err = p.client.Get(ctx, x.want); err != nil {
		return false, p.setRefusal(ctx, x, err)
	}
	adopt := p.cs.Spec.Apply.AdoptPolicy
	x.claim = p.claim(ctx, x)
	if x.claim == plan.Others || plan.IsCurrent(x.want, x.live) {
		x.item = plan.Decide(x.want, x.live, nil, adopt, x.claim)
		return false, nil
	}
	x.dry, err = p.client.DryRun(ctx, x.want)
	if apierrors.IsNotFound(err) && p.namespaces[x.want.GetNamespace()] {
		x.deferred = true
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its namespace"}
		return false, nil
	}
	if err != nil {
		if err := p.setRefusal(ctx, x, err); err != nil || x.fault.Reason != v1alpha1.ReasonImmutableField {
			return false, err
		}
		return false, p.planRecreation(ctx, x)
	}
	if x.live != nil {
		if x.extras = plan.Extras(x.live, x.dry); len(x.extras) > 0 {
			removed, err := p.client.DryRunRemoval(ctx, x.live, x.extras)
			if apierrors.IsConflict(err) {
				return true, fmt.Errorf("%s changes all the time: %w", x.want.ID(), err)
			}
			if err != nil {
				return false, p.setRefusal(ctx, x, err)
			}
			x.extras = plan.Settle(x.live, x.dry, removed, x.extras)
		}
	}
	x.item = plan.Decide(x.want, x.live, x.dry, adopt, x.claim)
	return false, nil
}

// claim says who owns the live version of an object of the commit.
func (p *planner) claim(ctx context.Context, x *object) plan.Claim {
	if x.live == nil {
		return plan.Unowned
	}
	e := p.entries[x.want.ID()]
	listed := e.UID != "" && e.UID == x.live.GetUID()
	switch by := plan.OwnerOf(x.live); {
	case by != "" && by != p.cs.Owner() && p.owners.owns(ctx, by, e.UID, x.live):
		return plan.Others
	case by == p.cs.Owner(), listed:
		return plan.Ours
	}
	return plan.Unowned
}

// setRefusal sets the fault of an object if err is a refusal of the API server. It returns any other error, which ends the run.
func (p *planner) setRefusal(ctx context.Context, x *object, err error) error {
	if !apply.IsRefusal(err) {
		return apply.Redact(x.want, err)
	}
	x.fault = p.client.Explain(ctx, x.want, x.live, err)
	return nil
}

// removals returns the objects of the inventory that the commit does not have, in the order in which they are pruned, and reads
// them. If that fails, it returns them with the error. An entry that names an object of the commit in another way, with another namespace
// or group, counts as gone.
func (p *planner) removals(ctx context.Context, objects []*object) ([]*removal, error) {
	wanted, live := map[manifest.ID]bool{}, map[types.UID]bool{}
	for _, x := range objects {
		wanted[x.want.ID()] = true
		if x.live != nil && x.live.GetUID() != "" {
			live[x.live.GetUID()] = true
		}
	}
	var removals []*removal
	for _, e := range p.entries {
		if !wanted[e.ID] {
			removals = append(removals, &removal{Entry: e})
		}
	}
	slices.SortFunc(removals, func(a, b *removal) int {
		return cmp.Or(cmp.Compare(b.Rank(), a.Rank()), a.Compare(b.ID))
	})
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for _, x := range removals {
		g.Go(func() error {
			var err error
			x.live, err = p.client.GetEntry(ctx, x.Entry)
			unknown, isUnknown := errors.AsType[*failure.Error](err)
			switch {
			case err == nil && x.live != nil && live[x.live.GetUID()]:
				x.live = nil
			case err == nil:
				by := plan.OwnerOf(x.live)
				x.taken = by != "" && by != p.cs.Owner() && p.owners.owns(ctx, by, x.UID, x.live)
			case isUnknown:
				x.fault, x.forbidden = unknown, unknown.Reason == v1alpha1.ReasonApplyForbidden
			case apierrors.IsForbidden(err) && p.owners.lacksNamespace(ctx, x.Namespace): // the object is gone with its namespace, and so are the rights
			case apierrors.IsForbidden(err):
				x.forbidden = true
				x.fault = failure.New(v1alpha1.ReasonApplyForbidden, "the caller may not read it: grant it the verbs get and delete")
			default:
				return apply.RedactRemoval(x.ID, err)
			}
			return nil
		})
	}
	return removals, g.Wait()
}

// plan decides what the run does with each of the targets that were read.
func (p *planner) plan(source *Rendered, t *targets, prune v1alpha1.Prune) *plan.Plan {
	result := &plan.Plan{Ref: source.Ref, Commit: source.Commit}
	for _, x := range t.objects {
		if x.fault != nil {
			x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Refuse, Reason: x.fault.Reason, Message: x.fault.Error()}
			if x.fault.Reason.Class() == v1alpha1.ClassHeld {
				x.item.Action = plan.Hold
			}
		}
		if x.claim == plan.Ours {
			result.Owned++
		}
		if p.keepsDrift(x, source) {
			x.item.Action, x.state = plan.Drift, v1alpha1.ConfigDrifted
		}
		if x.item.Action == plan.Unchanged {
			x.state = v1alpha1.ConfigUnchanged
		}
		result.Items = append(result.Items, x.item)
	}
	for _, x := range t.removals {
		if x.fault != nil {
			x.item = plan.Item{ID: x.ID, Action: plan.Keep, Reason: x.fault.Reason, Message: x.fault.Error()}
			result.Removals = append(result.Removals, x.item)
			if prune == v1alpha1.PruneNone || x.NeverPruned() { // it stays anyway
				x.fault = nil
			}
			continue
		}
		item, exists := plan.DecideRemoval(x.Entry, x.live, t.owner, x.taken, prune)
		x.item, x.done = item, !exists || item.Action == plan.Release
		if !exists {
			continue
		}
		result.Removals = append(result.Removals, item)
		if item.Action == plan.Prune {
			result.Owned++
		}
	}
	return result
}

// keepsDrift reports whether an object was changed in the cluster and the spec says to report drift only. A Secret, and an object that lost
// its mark, have no digest of what was applied. They have drifted if the last run succeeded with the same spec and source, and no variable
// could have changed their content since. If that run failed, a Secret has drifted if its commit succeeded before with the same spec, and
// others own what differs.
func (p *planner) keepsDrift(x *object, source *Rendered) bool {
	if p.cs.Spec.Apply.DriftPolicy != v1alpha1.ConfigDriftReport || x.claim != plan.Ours {
		return false
	}
	st, from := &p.cs.Status, p.cs.Spec.Render
	ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	fixed := !from.Template && len(from.VarsFrom) == 0 && st.SourcePath == source.Path
	same := fixed && ready != nil && ready.Reason == string(v1alpha1.ReasonSynced) && ready.ObservedGeneration == p.cs.Generation &&
		st.SourceRef == source.Ref && st.SourceRevision == source.Commit
	if x.item.Action == plan.Configure && x.want.ID().IsSecret() {
		return same || fixed && len(st.History) > 0 && st.History[0].Commit == source.Commit && p.appliedAll() && plan.ChangedByOthers(x.live, x.dry)
	}
	return x.item.Action == plan.Repair && (same || plan.OwnerOf(x.live) == p.cs.Owner())
}

// appliedAll reports whether the last run that changed or checked all objects applied them as the present spec says. The condition Degraded
// keeps the generation of that run, and if it is true, its reason says whether the run failed only after the applies, see setTargets.
func (p *planner) appliedAll() bool {
	d := meta.FindStatusCondition(p.cs.Status.Conditions, v1alpha1.ConditionDegraded)
	return d != nil && d.ObservedGeneration == p.cs.Generation && (d.Status == metav1.ConditionFalse ||
		slices.Contains([]v1alpha1.Reason{v1alpha1.ReasonUnhealthy, v1alpha1.ReasonProgressDeadlineExceeded, v1alpha1.ReasonPruneFailed}, v1alpha1.Reason(d.Reason)))
}
