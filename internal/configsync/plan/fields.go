package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
)

// lastApplied is the annotation in which kubectl apply keeps a manifest.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ownAnnotations are the annotations that only git and this package may set. A run takes them over from every other manager.
var ownAnnotations = fieldpath.NewSet(annotationPath(v1alpha1.AnnotationConfigSync), annotationPath(v1alpha1.AnnotationConfigPrune),
	annotationPath(v1alpha1.AnnotationConfigRecreate), annotationPath(v1alpha1.AnnotationConfigWait))

func annotationPath(name string) fieldpath.Path {
	return fieldpath.MakePathOrDie("metadata", "annotations", name)
}

// byPerson reports whether a person wrote the fields of an entry of managedFields with kubectl. Restarts and scaling do not count,
// because they are not configuration.
func byPerson(f metav1.ManagedFieldsEntry) bool {
	return strings.HasPrefix(f.Manager, "kubectl") && f.Manager != "kubectl-rollout" && f.Subresource == ""
}

// byUs reports whether a ConfigSync applied the fields of an entry.
func byUs(f metav1.ManagedFieldsEntry) bool {
	return f.Manager == FieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == ""
}

// fieldsOf returns the fields of an entry. It returns no fields if they cannot be read.
func fieldsOf(f metav1.ManagedFieldsEntry) *fieldpath.Set {
	s := &fieldpath.Set{}
	if f.FieldsV1 == nil || s.FromJSON(f.FieldsV1.GetRawReader()) != nil {
		return &fieldpath.Set{}
	}
	return s
}

// ourFields returns the fields that ConfigSyncs have applied.
func ourFields(o metav1.Object) *fieldpath.Set {
	s := &fieldpath.Set{}
	for _, f := range o.GetManagedFields() {
		if byUs(f) {
			s = s.Union(fieldsOf(f))
		}
	}
	return s
}

// ChangedByOthers reports whether a Secret differs from dry, what an apply would produce, only in values that another manager set and
// that no ConfigSync has applied since.
func ChangedByOthers(live, dry *unstructured.Unstructured) bool {
	theirs := &fieldpath.Set{}
	for _, f := range live.GetManagedFields() {
		if !byUs(f) {
			theirs = theirs.Union(fieldsOf(f))
		}
	}
	theirs = theirs.Difference(ourFields(live))
	a, b := stripped(live), stripped(dry)
	was, is := a["data"], b["data"]
	delete(a, "data")
	delete(b, "data")
	if !reflect.DeepEqual(a, b) {
		return false
	}
	before, _ := was.(map[string]any)
	after, _ := is.(map[string]any)
	for key, v := range after {
		if !reflect.DeepEqual(before[key], v) && !theirs.Has(fieldpath.MakePathOrDie("data", key)) {
			return false
		}
	}
	for key := range before {
		if _, kept := after[key]; !kept && !theirs.Has(fieldpath.MakePathOrDie("data", key)) {
			return false
		}
	}
	return true
}

// Extras returns the fields of a live object that a person set and that neither git nor a controller sets, in an order in which they can
// be removed. An annotation of ownAnnotations counts as set by a person, whatever manager set it. dry is the result of a dry run, or nil if the
// manifest was applied already. Some of the fields may be defaults: see Settle.
func Extras(live, dry *unstructured.Unstructured) []fieldpath.Path {
	applied := live
	if dry != nil {
		applied = dry
	}
	git, theirs, others := ourFields(applied), &fieldpath.Set{}, &fieldpath.Set{}
	for _, f := range live.GetManagedFields() {
		switch fields := fieldsOf(f); {
		case byPerson(f):
			theirs = theirs.Union(fields)
		case !byUs(f):
			theirs, others = theirs.Union(fields.Intersection(ownAnnotations)), others.Union(fields.Difference(ownAnnotations))
		}
	}
	theirs = theirs.Difference(git).Difference(others)
	if theirs.Empty() {
		return nil
	}
	kept := map[string]bool{} // a field that contains a field of git or of a controller stays
	for _, s := range []*fieldpath.Set{git, others} {
		for p := range s.All() {
			for n := range p {
				kept[p[:n+1].String()] = true
			}
		}
	}
	var list []fieldpath.Path
	taken := map[string]bool{}
	paths := slices.SortedFunc(func(yield func(fieldpath.Path) bool) {
		for p := range theirs.All() {
			if !yield(p.Copy()) {
				return
			}
		}
	}, func(a, b fieldpath.Path) int { return cmp.Compare(len(a), len(b)) })
	for _, p := range paths {
		inside := false
		for n := range p {
			inside = inside || taken[p[:n+1].String()]
		}
		if _, found := locate(live.Object, p); inside || !found || kept[p.String()] || isBookkeeping(live, p) {
			continue
		}
		taken[p.String()] = true
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b fieldpath.Path) int { // the last item of a list first
		x, _ := locate(live.Object, a)
		y, _ := locate(live.Object, b)
		return slices.CompareFunc(y, x, compareTokens)
	})
	return list
}

// isBookkeeping reports whether a field is not a part of the configuration: what kubectl remembers, the status, and the requests of users to Stoker.
func isBookkeeping(live *unstructured.Unstructured, p fieldpath.Path) bool {
	return p[0].FieldName != nil && *p[0].FieldName == "status" || p.Equals(annotationPath(lastApplied)) || p.Equals(annotationPath(v1alpha1.AnnotationConfigDigest)) ||
		isRequest(live, p)
}

// isRequest reports whether a field is an annotation with which users make a request to Stoker.
func isRequest(live *unstructured.Unstructured, p fieldpath.Path) bool {
	return manifest.IDOf(live).Group == v1alpha1.GroupVersion.Group && len(p) == 3 && p[:2].Equals(fieldpath.MakePathOrDie("metadata", "annotations")) &&
		p[2].FieldName != nil && strings.HasPrefix(*p[2].FieldName, "stoker.io/") && !ownAnnotations.Has(p) && *p[2].FieldName != v1alpha1.AnnotationConfigDigest
}

// locate returns the JSON pointer of a field, as its unescaped tokens.
func locate(at any, p fieldpath.Path) (tokens []string, found bool) {
	for _, e := range p {
		switch {
		case e.FieldName != nil:
			m, _ := at.(map[string]any)
			if at, found = m[*e.FieldName]; !found {
				return nil, false
			}
			tokens = append(tokens, *e.FieldName)
		default:
			list, _ := at.([]any)
			i := slices.IndexFunc(list, func(item any) bool { return selects(e, item) })
			if e.Index != nil {
				i = *e.Index
			}
			if i < 0 || i >= len(list) {
				return nil, false
			}
			at, tokens = list[i], append(tokens, strconv.Itoa(i))
		}
	}
	return tokens, len(tokens) > 0
}

// selects reports whether a path element names an item of a list.
func selects(e fieldpath.PathElement, item any) bool {
	if e.Value != nil {
		return value.Equals(*e.Value, value.NewValueInterface(item))
	}
	m, ok := item.(map[string]any)
	if !ok || e.Key == nil {
		return false
	}
	for _, f := range *e.Key {
		if v, ok := m[f.Name]; !ok || !value.Equals(f.Value, value.NewValueInterface(v)) {
			return false
		}
	}
	return true
}

// compareTokens orders indexes of lists as numbers.
func compareTokens(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}

type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// RemovalPatch returns a JSON patch that removes extras from live. It fails with a conflict if the object is not exactly as live.
func RemovalPatch(live *unstructured.Unstructured, extras []fieldpath.Path) ([]byte, error) {
	patch := []patchOperation{{"replace", "/metadata/resourceVersion", live.GetResourceVersion()}}
	for _, p := range extras {
		tokens, _ := locate(live.Object, p)
		pointer := ""
		for _, t := range tokens {
			pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(t)
		}
		patch = append(patch, patchOperation{Op: "remove", Path: pointer})
	}
	return json.Marshal(patch)
}

// Settle returns the extras that git has to remove: not those that the API server sets again to the same value. removed is the result of a
// dry run of RemovalPatch. In dry, Settle gives the returned fields the values that they have in removed, or removes them, so that dry is the
// object that an apply after TakeOver produces.
func Settle(live, dry, removed *unstructured.Unstructured, extras []fieldpath.Path) (left []fieldpath.Path) {
	for _, p := range extras {
		before, _ := valueAt(live.Object, p)
		after, exists := valueAt(removed.Object, p)
		if exists && reflect.DeepEqual(before, after) {
			continue
		}
		left = append(left, p)
		if tokens, found := locate(dry.Object, p); found {
			dry.Object = replaceAt(dry.Object, tokens, after, exists).(map[string]any)
		}
	}
	return left
}

func valueAt(root any, p fieldpath.Path) (any, bool) {
	tokens, found := locate(root, p)
	if !found {
		return nil, false
	}
	for _, t := range tokens {
		switch at := root.(type) {
		case map[string]any:
			root = at[t]
		case []any:
			i, _ := strconv.Atoi(t)
			root = at[i]
		}
	}
	return root, true
}

// replaceAt returns root with the value v at a pointer that exists, or without it unless keep is set. It changes root.
func replaceAt(root any, tokens []string, v any, keep bool) any {
	switch at := root.(type) {
	case map[string]any:
		switch {
		case len(tokens) > 1:
			at[tokens[0]] = replaceAt(at[tokens[0]], tokens[1:], v, keep)
		case keep:
			at[tokens[0]] = v
		default:
			delete(at, tokens[0])
		}
	case []any:
		i, _ := strconv.Atoi(tokens[0])
		switch {
		case len(tokens) > 1:
			at[i] = replaceAt(at[i], tokens[1:], v, keep)
		case keep:
			at[i] = v
		default:
			return slices.Delete(at, i, i+1)
		}
	}
	return root
}

// TakeOver returns a JSON patch that gives the fields of kubectl's managers to ConfigSyncs: those of git, and extras, which the next apply
// removes because git lacks them. It also gives them ownAnnotations of every other manager. Defaults that kubectl owned belong to no manager
// any more, so that they stay. Only the managers change. TakeOver returns nil if there is nothing to do. The patch fails with a conflict if
// the object is not exactly as live.
func TakeOver(live, dry *unstructured.Unstructured, extras []fieldpath.Path) ([]byte, error) {
	git, gone := ourFields(dry), fieldpath.NewSet(extras...)
	ours, changed := ourFields(live), false
	var entries []metav1.ManagedFieldsEntry
	for _, f := range live.GetManagedFields() {
		fields := fieldsOf(f)
		switch {
		case byUs(f):
			continue
		case byPerson(f):
			ours = ours.Union(fields.Intersection(git)).Union(below(fields, gone)).Union(fields.Intersection(fieldpath.NewSet(annotationPath(lastApplied))))
			requests := &fieldpath.Set{} // stay, because their manager shows who made them
			for p := range fields.All() {
				if isRequest(live, p) {
					requests.Insert(p.Copy())
				}
			}
			changed = changed || !requests.Equals(fields)
			if requests.Empty() {
				continue
			}
			fields = requests
		default:
			marks := fields.Intersection(ownAnnotations)
			ours, fields, changed = ours.Union(marks), fields.Difference(marks), changed || !marks.Empty()
		}
		text, err := fields.ToJSON()
		if err != nil {
			return nil, err
		}
		f.FieldsV1 = &metav1.FieldsV1{}
		f.FieldsV1.SetRawBytes(text)
		entries = append(entries, f)
	}
	if !changed || ours.Empty() {
		return nil, nil
	}
	text, err := ours.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("write the managers of fields: %w", err)
	}
	own := metav1.ManagedFieldsEntry{Manager: FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: live.GetAPIVersion(), FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{}}
	own.FieldsV1.SetRawBytes(text)
	return json.Marshal([]patchOperation{
		{"replace", "/metadata/managedFields", append(entries, own)}, {"replace", "/metadata/resourceVersion", live.GetResourceVersion()},
	})
}

// below returns the fields that are among roots, or inside one of them.
func below(fields, roots *fieldpath.Set) *fieldpath.Set {
	found := &fieldpath.Set{}
	for p := range fields.All() {
		for n := range p {
			if roots.Has(p[:n+1]) {
				found.Insert(p.Copy())
				break
			}
		}
	}
	return found
}
