package plan

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	maxChangedFields = 50  // fields of one object
	maxKey           = 120 // bytes of one key of a path
)

// changedFields returns the paths in which two versions of an object differ, without the metadata that the API server maintains. It cuts the
// paths of objects that may hold values of Secrets, because keys may hold such values, too.
func changedFields(want manifest.Object, live, dry *unstructured.Unstructured) []string {
	c := comparison{depth: shownDepth(want)}
	c.compare("", stripped(live), stripped(dry), 0)
	slices.Sort(c.paths)
	return slices.Compact(c.paths)
}

// Differences returns the paths of the fields that git sets and that differ in a live object.
func Differences(want manifest.Object, live *unstructured.Unstructured) []string {
	c := comparison{depth: shownDepth(want), subset: true}
	c.compare("", stripped(live), stripped(want.Unstructured), 0)
	slices.Sort(c.paths)
	return slices.Compact(c.paths)
}

// shownDepth returns how deep the paths of an object may be shown.
func shownDepth(o manifest.Object) int {
	switch {
	case o.Tainted:
		return 1
	case o.ID().IsSecret():
		return 2
	}
	return 16
}

// stripped returns a copy of an object without the metadata that the API server maintains, and without mark, digest and the manifest that
// kubectl remembers.
func stripped(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	for _, mark := range []string{v1alpha1.AnnotationConfigSync, v1alpha1.AnnotationConfigDigest, lastApplied} {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", mark)
	}
	if len(u.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations")
	}
	return u.Object
}

// comparison collects the paths in which two values differ.
type comparison struct {
	depth  int  // of the longest paths
	subset bool // what only a has does not count
	paths  []string
}

func (c *comparison) compare(path string, a, b any, depth int) {
	if len(c.paths) >= maxChangedFields || reflect.DeepEqual(a, b) || c.subset && contains(a, b) {
		return
	}
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	al, aIsList := a.([]any)
	bl, bIsList := b.([]any)
	switch {
	case depth < c.depth && aIsMap && bIsMap:
		for key := range am {
			if _, ok := bm[key]; ok || !c.subset {
				c.compare(join(path, key), am[key], bm[key], depth+1)
			}
		}
		for key := range bm {
			if _, ok := am[key]; !ok {
				c.compare(join(path, key), nil, bm[key], depth+1)
			}
		}
	case depth < c.depth && aIsList && bIsList && len(al) == len(bl):
		for i := range al {
			c.compare(fmt.Sprintf("%s[%d]", path, i), al[i], bl[i], depth+1)
		}
	default:
		c.paths = append(c.paths, path)
	}
}

func join(path, key string) string {
	key = failure.Cut(key, maxKey)
	if path == "" {
		return key
	}
	return path + "." + key
}
