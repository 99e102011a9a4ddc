package plan_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

const us = "site/plant"

func want(t *testing.T, kind string, data map[string]any) manifest.Object {
	t.Helper()
	o, err := plan.Mark(manifest.Object{Unstructured: object(kind, data), File: "a.yaml"}, us)
	require.NoError(t, err)
	return o
}

func object(kind string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": "a", "namespace": "site"}, "data": data}}
}

// live is an object as the API server would keep it.
func live(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	u.SetUID("u-1")
	u.SetResourceVersion("7")
	return u
}

func TestDecide(t *testing.T) {
	now, before := map[string]any{"a": "1"}, map[string]any{"a": "0"}
	wanted := want(t, "ConfigMap", now)
	ours, old := live(wanted.Unstructured), live(want(t, "ConfigMap", before).Unstructured)
	drifted := live(wanted.Unstructured)
	drifted.Object["data"] = before
	others := live(wanted.Unstructured)
	others.SetAnnotations(map[string]string{v1alpha1.AnnotationConfigSync: "site/other"})
	bare, different := live(object("ConfigMap", now)), live(object("ConfigMap", before))
	mark := "metadata.annotations.stoker.io/configsync"
	for name, c := range map[string]struct {
		live   *unstructured.Unstructured
		claim  plan.Claim
		adopt  v1alpha1.ConfigAdoptPolicy
		action plan.Action
		fields []string
	}{
		"none":               {nil, plan.Unowned, "", plan.Create, nil},
		"ours":               {ours, plan.Ours, "", plan.Unchanged, nil},
		"git changed":        {old, plan.Ours, "", plan.Configure, []string{"data.a"}},
		"cluster changed":    {drifted, plan.Ours, "", plan.Repair, []string{"data.a"}},
		"owned by others":    {others, plan.Others, v1alpha1.ConfigAdoptAlways, plan.Hold, nil},
		"mark is wrong":      {others, plan.Ours, "", plan.Repair, []string{mark}},
		"mark is lost":       {different, plan.Ours, "", plan.Repair, []string{"data.a", mark}},
		"owner is gone":      {others, plan.Unowned, v1alpha1.ConfigAdoptEqual, plan.Configure, nil},
		"equal":              {bare, plan.Unowned, v1alpha1.ConfigAdoptEqual, plan.Configure, nil},
		"different":          {different, plan.Unowned, v1alpha1.ConfigAdoptEqual, plan.Hold, nil},
		"different, adopted": {different, plan.Unowned, v1alpha1.ConfigAdoptAlways, plan.Configure, []string{"data.a"}},
	} {
		t.Run(name, func(t *testing.T) {
			var dry *unstructured.Unstructured
			if c.live != nil && !plan.IsCurrent(wanted, c.live) {
				dry = live(wanted.Unstructured)
			}
			item := plan.Decide(wanted, c.live, dry, c.adopt, c.claim)
			assert.Equal(t, c.action, item.Action, item.Message)
			assert.Equal(t, c.fields, item.Fields)
			if c.action == plan.Hold {
				assert.Equal(t, v1alpha1.ReasonNotOwned, item.Reason)
			}
		})
	}
}

func TestIsCurrent(t *testing.T) {
	wanted := want(t, "ConfigMap", map[string]any{"a": "1", "list": []any{map[string]any{"x": int64(1)}}})
	more := live(wanted.Unstructured)
	more.Object["status"] = map[string]any{"phase": "x"}
	more.Object["data"].(map[string]any)["list"].([]any)[0].(map[string]any)["defaulted"] = true
	assert.True(t, plan.IsCurrent(wanted, more), "fields that git does not set must be ignored")
	for name, change := range map[string]func(map[string]any){
		"value":        func(d map[string]any) { d["a"] = "2" },
		"missing":      func(d map[string]any) { delete(d, "a") },
		"longer list":  func(d map[string]any) { d["list"] = append(d["list"].([]any), "x") },
		"another type": func(d map[string]any) { d["list"] = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			changed := more.DeepCopy()
			change(changed.Object["data"].(map[string]any))
			assert.False(t, plan.IsCurrent(wanted, changed))
		})
	}
	assert.False(t, plan.IsCurrent(want(t, "ConfigMap", map[string]any{"a": "1"}), more), "another manifest must not be current")
	assert.False(t, plan.IsCurrent(wanted, nil))
}

func TestDecideRemoval(t *testing.T) {
	ours := live(want(t, "ConfigMap", nil).Unstructured)
	managed := ours.DeepCopy()
	managed.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: plan.FieldManager, Operation: metav1.ManagedFieldsOperationApply}})
	unmarked := managed.DeepCopy()
	unmarked.SetAnnotations(nil)
	theirs := ours.DeepCopy()
	theirs.SetAnnotations(map[string]string{v1alpha1.AnnotationConfigSync: us, v1alpha1.AnnotationConfigPrune: "disabled"})
	kept := theirs.DeepCopy()
	kept.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: plan.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:stoker.io/prune":{}}}}`)}})
	ending := ours.DeepCopy()
	now := metav1.Now()
	ending.SetDeletionTimestamp(&now)
	for name, c := range map[string]struct {
		uid    types.UID
		kind   string
		live   *unstructured.Unstructured
		policy v1alpha1.Prune
		action plan.Action
	}{
		"ours":                  {"u-1", "ConfigMap", ours, "", plan.Prune},
		"another UID":           {"u-2", "ConfigMap", ours, "", plan.Release},
		"mark lost":             {"u-1", "ConfigMap", unmarked, "", plan.Prune},
		"never applied":         {"u-1", "ConfigMap", live(object("ConfigMap", nil)), "", plan.Release},
		"intent, applied":       {"", "ConfigMap", managed, "", plan.Prune},
		"intent, mark copied":   {"", "ConfigMap", ours, "", plan.Release},
		"disabled in git":       {"u-1", "ConfigMap", kept, "", plan.Release},
		"disabled by others":    {"u-1", "ConfigMap", theirs, "", plan.Prune},
		"policy none":           {"u-1", "ConfigMap", ours, v1alpha1.PruneNone, plan.Keep},
		"PersistentVolumeClaim": {"u-1", "PersistentVolumeClaim", ours, "", plan.Keep},
		"Namespace":             {"u-1", "Namespace", ours, "", plan.Keep},
		"being deleted":         {"u-1", "ConfigMap", ending, "", plan.Keep},
		"gone":                  {"u-1", "ConfigMap", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := manifest.Entry{ID: manifest.ID{Kind: c.kind, Namespace: "site", Name: "a"}, UID: c.uid}
			item, there := plan.DecideRemoval(e, c.live, us, false, c.policy)
			assert.Equal(t, c.live != nil, there)
			if there {
				assert.Equal(t, c.action, item.Action)
			}
		})
	}
}

func TestMassDeletion(t *testing.T) {
	items := func(n int, a plan.Action) (list []plan.Item) {
		for i := range n {
			list = append(list, plan.Item{ID: manifest.ID{Kind: "ConfigMap", Name: fmt.Sprint(i)}, Action: a})
		}
		return list
	}
	for name, c := range map[string]struct {
		pruned, owned, wanted int
		mass                  bool
	}{
		"nothing":         {0, 0, 0, false},
		"all":             {1, 1, 0, true},
		"one is renamed":  {1, 1, 1, false},
		"five of five":    {5, 5, 5, false},
		"six of six":      {6, 6, 6, true},
		"six of twelve":   {6, 12, 6, false},
		"seven of twelve": {7, 12, 5, true},
		"40 of 2000":      {40, 2000, 1960, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Plan{Commit: "1f0c2d3aaaa", Owned: c.owned, Items: items(c.wanted, plan.Unchanged), Removals: items(c.pruned, plan.Prune)}
			assert.Equal(t, c.mass, p.IsMassDeletion())
			assert.Equal(t, c.mass, failure.Is(p.Problem(false), v1alpha1.ReasonMassDeletion))
			assert.NoError(t, p.Problem(true))
		})
	}
}

func TestPlanPrints(t *testing.T) {
	p := plan.Plan{
		Ref: "main", Commit: "1f0c2d3aaaa",
		Items: []plan.Item{
			{ID: manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "a"}, Action: plan.Create},
			{ID: manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "b"}, Action: plan.Unchanged},
			{ID: manifest.ID{Group: "apps", Kind: "StatefulSet", Namespace: "site", Name: "line"}, Action: plan.Configure, Fields: []string{"spec.replicas"}},
			{ID: manifest.ID{Kind: "Service", Namespace: "site", Name: "c"}, Action: plan.Hold, Reason: v1alpha1.ReasonNotOwned, Message: "it exists"},
		},
		Removals: []plan.Item{{ID: manifest.ID{Kind: "Namespace", Name: "old"}, Action: plan.Keep, Message: "this kind\nis kept"}},
	}
	assert.Equal(t, `main at 1f0c2d3: 1 to create, 1 to configure, 1 unchanged, 1 to keep, 1 held
create     ConfigMap site/a
configure  StatefulSet.apps site/line: spec.replicas
held       Service site/c: NotOwned: it exists
keep       Namespace old: this kind is kept
`, p.String())
	assert.True(t, failure.Is(p.Problem(false), v1alpha1.ReasonNotOwned))
	assert.ErrorContains(t, p.Problem(false), "nothing was changed: Service site/c: it exists")
}

// G4: a plan holds no value, of a Secret also no key of a value, and of a tainted object no key at all.
func TestPlanHoldsNoValues(t *testing.T) {
	for name, c := range map[string]struct {
		kind    string
		tainted bool
		fields  []string
	}{
		"Secret":            {"Secret", false, []string{"data.password"}},
		"ConfigMap":         {"ConfigMap", false, []string{"data.password.S3CR3T-key"}},
		"tainted ConfigMap": {"ConfigMap", true, []string{"data"}},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := want(t, c.kind, map[string]any{"password": map[string]any{"S3CR3T-key": "S3CR3T-new"}})
			wanted.Tainted = c.tainted
			old := live(want(t, c.kind, map[string]any{"password": map[string]any{"S3CR3T-key": "S3CR3T-old"}}).Unstructured)
			item := plan.Decide(wanted, old, live(wanted.Unstructured), "", plan.Ours)
			assert.Equal(t, c.fields, item.Fields)
			p := plan.Plan{Items: []plan.Item{item}}
			assert.NotContains(t, p.String(), "S3CR3T-new")
			assert.NotContains(t, p.String(), "S3CR3T-old")
		})
	}
}

// G2, G4: whatever two versions of an object hold, a plan names paths only, never deletes what is not ours, and is the same each time.
func FuzzDecide(f *testing.F) {
	f.Add(`{"data":{"a":"1"}}`, `{"data":{"a":"2"}}`, "site/plant", true)
	f.Add(`{"spec":{"l":[1,{"x":null}]}}`, `{"spec":{"l":[1,2,3]}}`, "", false)
	f.Fuzz(func(t *testing.T, a, b, mark string, always bool) {
		read := func(text string) *unstructured.Unstructured {
			u := object("ConfigMap", nil)
			more := map[string]any{}
			if json.Unmarshal([]byte(text), &more) != nil {
				t.Skip()
			}
			for k, v := range more {
				if k != "metadata" && k != "kind" && k != "apiVersion" {
					u.Object[k] = v
				}
			}
			return u
		}
		wanted, err := plan.Mark(manifest.Object{Unstructured: read(a)}, us)
		require.NoError(t, err)
		there := live(read(b))
		if mark != "" {
			there.SetAnnotations(map[string]string{v1alpha1.AnnotationConfigSync: mark})
		}
		adopt := v1alpha1.ConfigAdoptEqual
		if always {
			adopt = v1alpha1.ConfigAdoptAlways
		}
		claim := plan.Ours
		if mark != us {
			claim = plan.Others
		}
		item := plan.Decide(wanted, there, live(wanted.Unstructured), adopt, claim)
		require.Equal(t, item, plan.Decide(wanted, there, live(wanted.Unstructured), adopt, claim))
		if claim == plan.Others {
			require.Equal(t, plan.Hold, item.Action)
		}
		removal, _ := plan.DecideRemoval(manifest.Entry{ID: item.ID, UID: there.GetUID()}, there, us, claim == plan.Others, v1alpha1.PruneOwned)
		require.Equal(t, claim == plan.Ours, removal.Action == plan.Prune)
	})
}
