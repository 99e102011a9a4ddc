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

// atATime is how many requests of a plan are under way. After a burst, which is enough to look at 500 objects, perSecond bounds them.
const (
	atATime   = 8
	burst     = 600
	perSecond = 100
)

// Run is one run of a ConfigSync.
type Run struct {
	Plan *plan.Plan

	cs       *v1alpha1.ConfigSync
	own      kube.Clients // for the status and Events
	shared   bool         // other replicas may take over
	wasReady bool         // before the run
	client   *apply.Client
	rendered *Rendered
	objects  []*object // in the order of Plan.Items
	removals []*removal
	// listed are the entries of the inventory that the run started with.
	listed map[manifest.ID]manifest.Entry
	// known is the inventory that the status had when this run last read or wrote it. intended means that the run wrote its own.
	known     []string
	intended  bool
	stored    *v1alpha1.ConfigSync // as the intent wrote it, until it was written again
	pruneOnly bool
	prunes    v1alpha1.Prune
	// kinds, with their scopes, and namespaces are those that the commit itself brings.
	kinds      map[string]string
	namespaces map[string]bool
}

// object is an object of the commit.
type object struct {
	want manifest.Object // marked, in its namespace
	item plan.Item
	live *unstructured.Unstructured // what was last seen of it
	// later means that the object cannot be planned before a kind or a namespace of the commit exists.
	later bool
	state v1alpha1.ConfigTargetState
	fault *failure.Error
}

// removal is an object of the inventory that the commit does not have.
type removal struct {
	manifest.Entry
	item  plan.Item
	live  *unstructured.Unstructured
	done  bool // it is gone, or no longer ours
	fault *failure.Error
	// forbidden means that the fault is a lack of rights.
	forbidden bool
}

// Prepare plans a run: it reads the live objects and dry-runs those that are not as git has them. It changes nothing. The error is
// that of the way to the API server; what the API server refuses is in the plan.
func (e *Engine) Prepare(ctx context.Context, cs *v1alpha1.ConfigSync, rendered *Rendered) (*Run, error) {
	r, err := e.start(cs)
	if err != nil {
		return nil, err
	}
	r.rendered = rendered
	if err := r.place(rendered.Objects); err != nil {
		return nil, err
	}
	if err := r.each(ctx, r.objects, r.look); err != nil {
		return nil, err
	}
	if err := r.lookAtInventory(ctx); err != nil {
		return nil, err
	}
	r.write(r.cs.Spec.Prune)
	return r, nil
}

// start returns a run that can reach the objects of the cluster.
func (e *Engine) start(cs *v1alpha1.ConfigSync) (*Run, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(clients.Config)
	config.QPS, config.Burst, config.ContentType, config.AcceptContentTypes = perSecond, burst, "", ""
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := e.begin(cs, clients)
	r.client = apply.New(objects, clients.Core.Discovery(), cs)
	r.list()
	return r, nil
}

// list reads the inventory. A second line of the same object counts for nothing.
func (r *Run) list() {
	r.listed = map[manifest.ID]manifest.Entry{}
	for _, line := range r.cs.Status.Inventory {
		e, ok := manifest.ParseEntry(line)
		if _, twice := r.listed[e.ID]; ok && !twice {
			r.listed[e.ID] = e
		}
	}
}

// place marks the objects, gives them their namespaces, and puts them in the order of kinds.
func (r *Run) place(list []manifest.Object) error {
	r.brings(list)
	seen := map[manifest.ID]bool{}
	for _, o := range list {
		want, err := plan.Mark(o, r.cs.Owner())
		if err != nil {
			return err
		}
		x := &object{want: want, state: v1alpha1.ConfigPending}
		err = r.client.Place(want)
		own, unknown := errors.AsType[*failure.Error](err)
		if scope := r.kinds[want.ID().Type()]; unknown && scope != "" {
			x.later = true
			if scope == "Namespaced" && want.GetNamespace() == "" { // the inventory has to name the object before its kind is served
				want.SetNamespace(r.cs.Namespace)
			}
		}
		id := want.ID()
		switch {
		case unknown && !x.later:
			x.fault = own
		case err != nil && !x.later:
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

// brings notes the kinds and the namespaces that the commit itself brings.
func (r *Run) brings(list []manifest.Object) {
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

// each calls do for every object that is not settled otherwise, several at a time. It returns the first error.
func (r *Run) each(ctx context.Context, list []*object, do func(context.Context, *object) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atATime)
	for _, x := range list {
		if x.fault == nil {
			g.Go(func() error { return do(ctx, x) })
		}
	}
	return g.Wait()
}

// look reads an object, and dry-runs it unless it is as git has it.
func (r *Run) look(ctx context.Context, x *object) error {
	if x.later {
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its kind"}
		return nil
	}
	var err error
	if x.live, err = r.client.Get(ctx, x.want); err != nil {
		return r.refused(ctx, x, err)
	}
	if plan.Settled(x.want, x.live) {
		x.item = plan.Decide(x.want, x.live, nil, r.cs.Spec.Apply.AdoptPolicy)
		return nil
	}
	dry, err := r.client.DryRun(ctx, x.want)
	if apierrors.IsNotFound(err) && r.namespaces[x.want.GetNamespace()] {
		x.later = true
		x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Create, Message: "after its namespace"}
		return nil
	}
	if err != nil {
		if err := r.refused(ctx, x, err); err != nil || x.fault.Reason != v1alpha1.ReasonImmutableField {
			return err
		}
		return r.planRecreation(ctx, x)
	}
	x.item = plan.Decide(x.want, x.live, dry, r.cs.Spec.Apply.AdoptPolicy)
	return nil
}

// refused notes that the API server refuses an object. Any other error ends the run.
func (r *Run) refused(ctx context.Context, x *object, err error) error {
	if !apply.IsRefusal(err) {
		return apply.Quiet(x.want, err)
	}
	x.fault = r.client.Explain(ctx, x.want, x.live != nil, err)
	return nil
}

// lookAtInventory reads the objects of the inventory that the commit does not have.
func (r *Run) lookAtInventory(ctx context.Context) error {
	wanted := map[manifest.ID]bool{}
	for _, x := range r.objects {
		wanted[x.want.ID()] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atATime)
	for _, e := range r.listed {
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

// write makes the plan of what was seen.
func (r *Run) write(prune v1alpha1.Prune) {
	r.prunes = prune
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
		if r.drifted(x) {
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
		item, there := plan.Remove(x.Entry, x.live, r.cs.Owner(), prune)
		x.item, x.done = item, !there || item.Action == plan.Release
		if there {
			r.Plan.Removals = append(r.Plan.Removals, item)
		}
		if item.Action == plan.Prune && there {
			r.Plan.Owned++
		}
	}
}

// drifted reports whether an object was changed in the cluster and the spec says to leave it so. A Secret has no digest of what was applied: it has
// drifted if the commit and the spec are those of the last run, and nothing else can have changed what is rendered.
func (r *Run) drifted(x *object) bool {
	if r.cs.Spec.Apply.DriftPolicy != v1alpha1.ConfigDriftReport {
		return false
	}
	st := &r.cs.Status
	same := len(st.History) > 0 && st.History[0].Commit == r.rendered.Commit && st.ObservedGeneration == r.cs.Generation && !r.cs.Spec.Render.Template
	return x.item.Action == plan.Repair || same && x.item.Action == plan.Configure && x.want.ID().IsSecret() && plan.Owned(x.live, r.cs.Owner())
}
