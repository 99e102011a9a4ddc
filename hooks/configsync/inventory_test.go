package configsync

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/plan"
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
	add := func(live *unstructured.Unstructured, action plan.Action, state v1alpha1.ConfigTargetState) *targets {
		want := manifest.Object{Unstructured: configMap("a", owner, "")}
		return &targets{owner: owner, objects: []*object{{want: want, live: live, item: plan.Item{Action: action}, state: state}}}
	}
	remove := func(done bool) *targets {
		entry := manifest.Entry{ID: manifest.ID{Kind: "ConfigMap", Namespace: "plant", Name: "a"}, UID: "1"}
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
		"of another owner":       {add(configMap("a", "plant/other", "1"), plan.Hold, v1alpha1.ConfigHeld), complete, []string{}},
		"to recreate":            {add(configMap("a", owner, "1"), plan.Recreate, v1alpha1.ConfigPending), intent, []string{"_ConfigMap_plant_a_"}},
		"recreated":              {add(configMap("a", owner, "2"), plan.Recreate, v1alpha1.ConfigCreated), complete, []string{"_ConfigMap_plant_a_2"}},
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
		"as it was read":    {[]string{ours, pruned}, []string{ours}},
		"with a new object": {[]string{ours, pruned, theirs}, []string{ours, theirs}},
		"with another UID":  {[]string{"_ConfigMap_plant_ours_9"}, []string{ours}},
		"unreadable line":   {[]string{"x"}, []string{ours}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &record{cs: &v1alpha1.ConfigSync{}, lastInventory: []string{ours, pruned}}
			r.cs.Status.Inventory = []string{ours}
			r.mergeInventory(c.now, gone)
			assert.Equal(t, c.want, r.cs.Status.Inventory)
		})
	}
}
