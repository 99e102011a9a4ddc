package configsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/apply"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Bounds of the requests of a run. The burst is enough to read 500 objects.
const (
	maxParallel       = 8
	requestBurst      = 600
	requestsPerSecond = 100
)

// Run is one run of a ConfigSync.
type Run struct {
	Plan *plan.Plan

	cs            *v1alpha1.ConfigSync
	statusClients kube.Clients // for the status and Events
	replicated    bool         // other replicas may take over
	wasReady      bool         // before the run
	client        *apply.Client
	rendered      *Rendered
	objects       []*object // in the order of Plan.Items
	removals      []*removal
	// entries are the entries of the inventory at the start of the run.
	entries map[manifest.ID]manifest.Entry
	// lastInventory is the inventory of the status when this run last read or wrote it.
	lastInventory []string
	wroteIntent   bool
	intent        *v1alpha1.ConfigSync // as the intent wrote it, until it was written again
	pruneOnly     bool
	prunePolicy   v1alpha1.Prune
	// kinds (with their scopes) and namespaces are those that the commit itself creates.
	kinds      map[string]string
	namespaces map[string]bool
}

// object is an object of the commit.
type object struct {
	want manifest.Object // marked, in its namespace
	item plan.Item
	live *unstructured.Unstructured // what was last seen of it
	// deferred means that the object cannot be planned before a kind or a namespace of the commit exists.
	deferred bool
	state    v1alpha1.ConfigTargetState
	fault    *failure.Error
}

// removal is an object of the inventory that the commit does not have.
type removal struct {
	manifest.Entry
	item  plan.Item
	live  *unstructured.Unstructured
	done  bool // the object does not exist, or does not belong to the ConfigSync
	fault *failure.Error
	// forbidden means that the fault is a lack of rights.
	forbidden bool
}

// Prepare plans a run: it reads the live objects and dry-runs those that differ from git. It changes nothing. It fails if the API server
// cannot be reached; objects that the API server refuses are in the plan.
func (e *Engine) Prepare(ctx context.Context, cs *v1alpha1.ConfigSync, rendered *Rendered) (*Run, error) {
	r, err := e.newConnectedRun(cs)
	if err != nil {
		return nil, err
	}
	r.rendered = rendered
	if err := r.addObjects(rendered.Objects); err != nil {
		return nil, err
	}
	if err := r.forEach(ctx, r.objects, r.planObject); err != nil {
		return nil, err
	}
	if err := r.readRemovals(ctx); err != nil {
		return nil, err
	}
	r.buildPlan(r.cs.Spec.Prune)
	return r, nil
}

// newConnectedRun returns a run with a client for the objects of the cluster.
func (e *Engine) newConnectedRun(cs *v1alpha1.ConfigSync) (*Run, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(clients.Config)
	config.QPS, config.Burst, config.ContentType, config.AcceptContentTypes = requestsPerSecond, requestBurst, "", ""
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := e.newRun(cs, clients)
	r.client = apply.New(objects, clients.Core.Discovery(), cs)
	r.readInventory()
	return r, nil
}

// readInventory parses the inventory of the status. It ignores a second line of the same object.
func (r *Run) readInventory() {
	r.entries = map[manifest.ID]manifest.Entry{}
	for _, line := range r.cs.Status.Inventory {
		e, ok := manifest.ParseEntry(line)
		if _, twice := r.entries[e.ID]; ok && !twice {
			r.entries[e.ID] = e
		}
	}
}

// addObjects adds the objects of the commit to the run: marked, in their namespaces, and in the order in which they are applied.
func (r *Run) addObjects(list []manifest.Object) error {
	r.findPrerequisites(list)
	seen := map[manifest.ID]bool{}
	for _, o := range list {
		want, err := plan.Mark(o, r.cs.Owner())
		if err != nil {
			return err
		}
		x := &object{want: want, state: v1alpha1.ConfigPending}
		err = r.client.ResolveNamespace(want)
		own, unknown := errors.AsType[*failure.Error](err)
		if scope := r.kinds[want.ID().Type()]; unknown && scope != "" {
			x.deferred = true
			if scope == "Namespaced" && want.GetNamespace() == "" { // the inventory has to name the object before its kind is served
				want.SetNamespace(r.cs.Namespace)
			}
		}
		id := want.ID()
		switch {
		case unknown && !x.deferred:
			x.fault = own
		case err != nil && !x.deferred:
			return fmt.Errorf("ask the API server for its kinds: %w", err)
		case seen[id]:
			return failure.New(v1alpha1.ReasonManifestInvalid, "%s is in the commit twice, once with and once without its namespace: keep one of them", id)
		}
		seen[id] = true
		r.objects = append(r.objects, x)
	}
	slices.SortStableFunc(r.objects, func(a, b *object) int {
		i, j := a.want.ID(), b.want.ID()
		return cmp.Or(cmp.Compare(i.Rank(), j.Rank()), i.Compare(j))
	})
	return nil
}

// findPrerequisites sets r.kinds and r.namespaces.
func (r *Run) findPrerequisites(list []manifest.Object) {
	r.kinds, r.namespaces = map[string]string{}, map[string]bool{}
	for _, o := range list {
		switch id := o.ID(); {
		case id.IsNamespace():
			r.namespaces[id.Name] = true
		case id.IsDefinition():
			group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
			r.kinds[manifest.ID{Group: group, Kind: kind}.Type()], _, _ = unstructured.NestedString(o.Object, "spec", "scope")
		}
	}
}

// forEach calls do for every object without a fault, several at a time. It returns the first error.
func (r *Run) forEach(ctx context.Context, list []*object, do func(context.Context, *object) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for _, x := range list {
		if x.fault == nil {
			g.Go(func() error { return do(ctx, x) })
		}
	}
	return g.Wait()
}

// planObject reads an object, dry-runs it unless it equals git, and sets its item or its fault.
func (r *Run) planObject(ctx context.Context, x *object) error {
	if x.deferred {
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its kind"}
		return nil
	}
	var err error
	if x.live, err = r.client.Get(ctx, x.want); err != nil {
		return r.setRefusal(ctx, x, err)
	}
	if plan.IsCurrent(x.want, x.live) {
		x.item = plan.Decide(x.want, x.live, nil, r.cs.Spec.Apply.AdoptPolicy)
		return nil
	}
	dry, err := r.client.DryRun(ctx, x.want)
	if apierrors.IsNotFound(err) && r.namespaces[x.want.GetNamespace()] {
		x.deferred = true
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its namespace"}
		return nil
	}
	if err != nil {
		if err := r.setRefusal(ctx, x, err); err != nil || x.fault.Reason != v1alpha1.ReasonImmutableField {
			return err
		}
		return r.planRecreation(ctx, x)
	}
	x.item = plan.Decide(x.want, x.live, dry, r.cs.Spec.Apply.AdoptPolicy)
	return nil
}

// setRefusal sets the fault of an object if err is a refusal of the API server. It returns any other error, which ends the run.
func (r *Run) setRefusal(ctx context.Context, x *object, err error) error {
	if !apply.IsRefusal(err) {
		return apply.Redact(x.want, err)
	}
	x.fault = r.client.Explain(ctx, x.want, x.live != nil, err)
	return nil
}

// readRemovals sets r.removals to the objects of the inventory that the commit does not have, and reads them.
func (r *Run) readRemovals(ctx context.Context) error {
	wanted := map[manifest.ID]bool{}
	for _, x := range r.objects {
		wanted[x.want.ID()] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for _, e := range r.entries {
		if wanted[e.ID] {
			continue
		}
		x := &removal{Entry: e}
		r.removals = append(r.removals, x)
		g.Go(func() error {
			var err error
			if x.live, err = r.client.GetEntry(ctx, e); err != nil {
				if !apierrors.IsForbidden(err) {
					return fmt.Errorf("%s: %w", e.ID, err)
				}
				x.forbidden = true
				x.fault = failure.New(v1alpha1.ReasonApplyForbidden, "the caller may not read it: grant it the verbs get and delete")
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.SortFunc(r.removals, func(a, b *removal) int {
		return cmp.Or(cmp.Compare(b.Rank(), a.Rank()), a.Compare(b.ID))
	})
	return nil
}

// buildPlan sets the plan, from the objects and removals that were read.
func (r *Run) buildPlan(prune v1alpha1.Prune) {
	r.prunePolicy = prune
	r.Plan = &plan.Plan{Ref: r.rendered.Ref, Commit: r.rendered.Commit}
	for _, x := range r.objects {
		if x.fault != nil {
			x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Refuse, Reason: x.fault.Reason, Message: x.fault.Error()}
			if x.fault.Reason.Class() == v1alpha1.ClassHeld {
				x.item.Action = plan.Hold
			}
		}
		if plan.Owned(x.live, r.cs.Owner()) {
			r.Plan.Owned++
		}
		if r.keepsDrift(x) {
			x.item.Action, x.state = plan.Drift, v1alpha1.ConfigDrifted
		}
		if x.item.Action == plan.Unchanged {
			x.state = v1alpha1.ConfigUnchanged
		}
		r.Plan.Items = append(r.Plan.Items, x.item)
	}
	for _, x := range r.removals {
		if x.fault != nil {
			x.item = plan.Item{ID: x.ID, Action: plan.Keep, Reason: x.fault.Reason, Message: x.fault.Error()}
			r.Plan.Removals = append(r.Plan.Removals, x.item)
			continue
		}
		item, exists := plan.DecideRemoval(x.Entry, x.live, r.cs.Owner(), prune)
		x.item, x.done = item, !exists || item.Action == plan.Release
		if !exists {
			continue
		}
		r.Plan.Removals = append(r.Plan.Removals, item)
		if item.Action == plan.Prune {
			r.Plan.Owned++
		}
	}
}

// keepsDrift reports whether an object was changed in the cluster and the spec says to report drift only. A Secret has no digest of what
// was applied. It has drifted if the commit and the spec are those of the last run, and no template could have changed its content.
func (r *Run) keepsDrift(x *object) bool {
	if r.cs.Spec.Apply.DriftPolicy != v1alpha1.ConfigDriftReport {
		return false
	}
	st := &r.cs.Status
	same := len(st.History) > 0 && st.History[0].Commit == r.rendered.Commit && st.ObservedGeneration == r.cs.Generation && !r.cs.Spec.Render.Template
	return x.item.Action == plan.Repair || same && x.item.Action == plan.Configure && x.want.ID().IsSecret() && plan.Owned(x.live, r.cs.Owner())
}
