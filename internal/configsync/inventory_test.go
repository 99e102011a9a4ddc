package configsync

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/clientset"
)

// configMap returns a ConfigMap with the mark of an owner.
func configMap(name, owner string, uid types.UID) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	u.SetNamespace("plant")
	u.SetName(name)
	u.SetUID(uid)
	u.SetAnnotations(map[string]string{v1alpha1.AnnotationConfigSync: owner})
	return u
}

// Before the first change the inventory has all that a run may create, and afterwards what it owns.
func TestInventory(t *testing.T) {
	const owner, complete, intent = "plant/site", true, false
	entry := manifest.Entry{ID: manifest.ID{Kind: "ConfigMap", Namespace: "plant", Name: "a"}, UID: "1"}
	add := func(live *unstructured.Unstructured, action plan.Action, state v1alpha1.ConfigTargetState) *targets {
		want := manifest.Object{Unstructured: configMap("a", owner, "")}
		return &targets{owner: owner, objects: []*object{{want: want, live: live, item: plan.Item{Action: action}, state: state}}}
	}
	deferred := func(entries ...manifest.Entry) *targets {
		list := add(nil, "", v1alpha1.ConfigPending)
		p := &planner{entries: map[manifest.ID]manifest.Entry{}}
		for _, e := range entries {
			p.entries[e.ID] = e
		}
		list.objects[0].deferred = true
		require.NoError(t, p.planObject(t.Context(), list.objects[0]))
		return list
	}
	remove := func(done bool) *targets {
		return &targets{owner: owner, removals: []*removal{{Entry: entry, done: done}}}
	}
	for name, c := range map[string]struct {
		targets  *targets
		complete bool
		want     []string
	}{
		"owned":                  {add(configMap("a", owner, "1"), plan.Unchanged, v1alpha1.ConfigUnchanged), complete, []string{"_ConfigMap_plant_a_1"}},
		"to create":              {add(nil, plan.Create, v1alpha1.ConfigPending), intent, []string{"_ConfigMap_plant_a_"}},
		"not created":            {add(nil, plan.Create, v1alpha1.ConfigFailed), complete, []string{}},
		"owned by others":        {add(configMap("a", "plant/other", "1"), plan.Hold, v1alpha1.ConfigHeld), complete, []string{}},
		"to recreate":            {add(configMap("a", owner, "1"), plan.Recreate, v1alpha1.ConfigPending), intent, []string{"_ConfigMap_plant_a_"}},
		"not recreated":          {add(configMap("a", owner, "1"), plan.Recreate, v1alpha1.ConfigPending), complete, []string{"_ConfigMap_plant_a_1"}},
		"recreated":              {add(configMap("a", owner, "2"), plan.Recreate, v1alpha1.ConfigCreated), complete, []string{"_ConfigMap_plant_a_2"}},
		"deferred":               {deferred(entry), complete, []string{"_ConfigMap_plant_a_1"}},
		"deferred, new":          {deferred(), complete, []string{}},
		"deferred, to apply":     {deferred(entry), intent, []string{"_ConfigMap_plant_a_"}},
		"to prune":               {remove(false), intent, []string{"_ConfigMap_plant_a_1"}},
		"could not be pruned":    {remove(false), complete, []string{"_ConfigMap_plant_a_1"}},
		"pruned, or not its own": {remove(true), complete, []string{}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, c.targets.inventory(c.complete)) })
	}
}

// The last write of a run keeps what another run added to the inventory meanwhile.
func TestMergeInventory(t *testing.T) {
	const ours, pruned, theirs = "_ConfigMap_plant_ours_1", "_ConfigMap_plant_pruned_2", "_ConfigMap_plant_theirs_3"
	gone := map[manifest.ID]bool{{Kind: "ConfigMap", Namespace: "plant", Name: "pruned"}: true}
	for name, c := range map[string]struct{ now, want []string }{
		"unchanged":         {[]string{ours, pruned}, []string{ours}},
		"with a new object": {[]string{ours, pruned, theirs}, []string{ours, theirs}},
		"with another UID":  {[]string{"_ConfigMap_plant_ours_9"}, []string{ours}},
		"unreadable line":   {[]string{"x"}, []string{ours}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &record{cs: &v1alpha1.ConfigSync{}}
			r.last.Inventory = []string{ours, pruned}
			r.cs.Status.Inventory = []string{ours}
			require.NoError(t, r.mergeInventory(c.now, gone))
			assert.Equal(t, c.want, r.cs.Status.Inventory)
		})
	}
	t.Run("too many together", func(t *testing.T) {
		r := &record{cs: &v1alpha1.ConfigSync{}}
		r.cs.Status.Inventory = []string{ours}
		var now []string
		for n := range maxInventory {
			now = append(now, fmt.Sprintf("_ConfigMap_plant_theirs%d_3", n))
		}
		err := r.mergeInventory(now, gone)
		assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		require.NoError(t, r.mergeInventory(now[1:], gone))
		assert.Len(t, r.cs.Status.Inventory, maxInventory)
	})
}

// runOf returns a run of a commit with n objects to create, with the clients that it uses. old are objects in the cluster that the run prunes.
func runOf(t *testing.T, n int, old ...*unstructured.Unstructured) (*Run, kube.Clients) {
	t.Helper()
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "site"}}
	cs.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindConfigSync))
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cs)
	require.NoError(t, err)
	objects := []runtime.Object{&unstructured.Unstructured{Object: stored}}
	for _, u := range old {
		objects = append(objects, u)
	}
	core := clientset.New()
	core.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}}}
	clients := kube.Clients{Core: core, Dynamic: fake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)}
	r := (&Engine{}).newRun(cs, clients)
	r.rendered = &Rendered{Commit: strings.Repeat("a", 40)}
	for n := range n {
		want := manifest.Object{Unstructured: configMap(fmt.Sprintf("a%d", n), cs.Owner(), "")}
		r.targets.objects = append(r.targets.objects, &object{want: want, item: plan.Item{ID: want.ID(), Action: plan.Create}, state: v1alpha1.ConfigPending})
	}
	for _, u := range old {
		r.targets.removals = append(r.targets.removals, &removal{Entry: manifest.Entry{ID: manifest.IDOf(u), UID: u.GetUID()}, live: u})
	}
	r.setPlan(&planner{cs: cs, client: apply.New(clients.Dynamic, core.Discovery(), cs)}, v1alpha1.PruneOwned)
	return r, clients
}

// What another run wrote while a prune ran stays, except for the objects that the prune deleted.
func TestStatusAfterPruneBesideAnotherRun(t *testing.T) {
	r, clients := runOf(t, 0)
	syncs := kube.ConfigSyncs(clients.Dynamic, "plant")
	other, err := syncs.Get(t.Context(), "site")
	require.NoError(t, err)
	other.Status.SourceRevision, other.Status.Inventory = strings.Repeat("b", 40), []string{"_ConfigMap_plant_new_2", "_ConfigMap_plant_old_1"}
	_, err = syncs.Update(t.Context(), other, metav1.UpdateOptions{}, "status")
	require.NoError(t, err)
	r.record.inventoryOnly = true
	r.record.last.Inventory = []string{"_ConfigMap_plant_old_1"}
	_, err = r.record.write(t.Context(), map[manifest.ID]bool{{Kind: "ConfigMap", Namespace: "plant", Name: "old"}: true})
	require.NoError(t, err)
	now, err := syncs.Get(t.Context(), "site")
	require.NoError(t, err)
	assert.Equal(t, other.Status.SourceRevision, now.Status.SourceRevision)
	assert.Equal(t, []string{"_ConfigMap_plant_new_2"}, now.Status.Inventory)
}

// A prune whose last write fails once with a conflict still ends with the status from before it.
func TestStatusAfterConflictOfPrune(t *testing.T) {
	r, clients := runOf(t, 1, configMap("old", "plant/site", "1"))
	writes := 0
	clients.Dynamic.(*fake.FakeDynamicClient).PrependReactor("update", "configsyncs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if writes++; writes == 2 {
			return true, nil, apierrors.NewConflict(kube.ConfigSync.Resource().GroupResource(), "site", nil)
		}
		return false, nil, nil
	})
	require.NoError(t, r.execute(t.Context(), Options{PruneOnly: true}))
	assert.Equal(t, 3, writes, "the last write must be repeated")
	now, err := kube.ConfigSyncs(clients.Dynamic, "plant").Get(t.Context(), "site")
	require.NoError(t, err)
	assert.Empty(t, now.Status.Conditions, "no run is under way")
	assert.Empty(t, now.Status.Inventory)
}

// If a request has lapsed since the last run, the condition Ready says nothing about the desired ref.
func TestOutcomeOfAnotherRef(t *testing.T) {
	cs := &v1alpha1.ConfigSync{}
	cs.Status.SourceRef, cs.Status.SourceRevision = "v1", strings.Repeat("a", 40)
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionRefResolved} { // setup: both are true
		meta.SetStatusCondition(&cs.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: string(v1alpha1.ReasonSynced)})
	}
	for ref, want := range map[string]v1alpha1.OutcomePhase{"v1": v1alpha1.OutcomeSucceeded, "main": v1alpha1.OutcomeProgressing} {
		t.Run(ref, func(t *testing.T) {
			cs.Spec.Source.Git = &v1alpha1.ConfigGit{Revision: ref}
			derive(cs)
			assert.Equal(t, want, cs.Status.Outcome.Phase)
			assert.Equal(t, ref, cs.Status.Outcome.Ref)
		})
	}
}

// A run that would own too many objects changes nothing, and the status says so.
func TestTooManyObjects(t *testing.T) {
	r, clients := runOf(t, maxInventory+1)
	err := r.execute(t.Context(), Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	written, err := kube.ConfigSyncs(clients.Dynamic, "plant").Get(t.Context(), "site")
	require.NoError(t, err)
	ready := meta.FindStatusCondition(written.Status.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, ready)
	assert.Equal(t, string(v1alpha1.ReasonLimitExceeded), ready.Reason)
	assert.Empty(t, written.Status.Inventory)
}

// A prune makes room for a commit that is too large together with what git no longer has.
func TestPruneOfTooManyObjects(t *testing.T) {
	old := configMap("old", "plant/site", "1")
	r, clients := runOf(t, maxInventory, old)
	require.NoError(t, r.execute(t.Context(), Options{PruneOnly: true}))
	deleted, failed := r.Pruned()
	assert.Equal(t, 1, deleted)
	assert.Zero(t, failed)
	written, err := kube.ConfigSyncs(clients.Dynamic, "plant").Get(t.Context(), "site")
	require.NoError(t, err)
	assert.Empty(t, written.Status.Inventory)
}

func TestUnhealthyNamesFailedObject(t *testing.T) {
	job := func(name, status string) *object {
		text := "{apiVersion: batch/v1, kind: Job, metadata: {name: " + name + ", namespace: plant}, status: " + status + "}"
		live := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &live.Object))
		return &object{want: manifest.Object{Unstructured: live}, live: live}
	}
	const hasFailed = "{conditions: [{type: Failed, status: 'True'}]}"
	healthy := job("healthy", "{conditions: [{type: Complete, status: 'True'}]}")
	progressing, slow := job("progressing", "{}"), job("slow", "{}")
	failed, other := job("failed", hasFailed), job("other", hasFailed)
	for name, c := range map[string]struct {
		objects []*object
		left    []*object
		example string
		failed  bool
	}{
		"all healthy":                  {[]*object{healthy}, nil, "", false},
		"one in progress":              {[]*object{healthy, progressing}, []*object{progressing}, "Job.batch plant/progressing: ", false},
		"failed object first":          {[]*object{failed, progressing}, []*object{failed, progressing}, "Job.batch plant/failed: ", true},
		"failed object last":           {[]*object{progressing, failed}, []*object{progressing, failed}, "Job.batch plant/failed: ", true},
		"failed object between others": {[]*object{progressing, failed, slow}, []*object{progressing, failed, slow}, "Job.batch plant/failed: ", true},
		"first of several failed":      {[]*object{failed, healthy, other}, []*object{failed, other}, "Job.batch plant/failed: ", true},
	} {
		t.Run(name, func(t *testing.T) {
			left, example, failed := unhealthy(c.objects)
			assert.Equal(t, c.left, left)
			assert.Equal(t, c.failed, failed)
			if c.example == "" {
				assert.Empty(t, example)
			} else {
				assert.Contains(t, example, c.example)
			}
		})
	}
}
