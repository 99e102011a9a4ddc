package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
)

// FieldManager is the name under which objects are applied.
const FieldManager = "stoker-configsync"

// Mark returns a copy of an object with the mark of its owner (annotation stoker.io/configsync) and a digest of the object. An object that
// may hold values of a Secret gets no digest, because short values could be guessed from it, so each run needs a dry run of the object.
func Mark(o manifest.Object, owner string) (manifest.Object, error) {
	marked := o
	marked.Unstructured = o.DeepCopy()
	annotations := marked.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationConfigSync] = owner
	delete(annotations, v1alpha1.AnnotationConfigDigest)
	if !o.Confidential() {
		data, err := json.Marshal(o.Object)
		if err != nil {
			return o, err
		}
		sum := sha256.Sum256(data)
		annotations[v1alpha1.AnnotationConfigDigest] = hex.EncodeToString(sum[:16])
	}
	marked.SetAnnotations(annotations)
	return marked, nil
}

// OwnerOf returns the owner that an object is marked with, or "" if it has no mark or is nil.
func OwnerOf(u *unstructured.Unstructured) string {
	if u == nil {
		return ""
	}
	return u.GetAnnotations()[v1alpha1.AnnotationConfigSync]
}

func digestOf(u *unstructured.Unstructured) string {
	return u.GetAnnotations()[v1alpha1.AnnotationConfigDigest]
}

// IsCurrent reports whether a live object needs no dry run: it was last applied from the same manifest, still has all of its fields, and no
// person added some. For a value that the API server writes in another form, such as 1 for 1000m, it returns false.
func IsCurrent(want manifest.Object, live *unstructured.Unstructured) bool {
	return live != nil && live.GetDeletionTimestamp() == nil && digestOf(want.Unstructured) != "" && contains(live.Object, want.Object) && len(Extras(live, nil)) == 0
}

// contains reports whether live has every field of want, including the mark and the digest.
func contains(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok {
			return false
		}
		for key, v := range want {
			if !contains(have[key], v) {
				return false
			}
		}
		return true
	case []any:
		have, ok := live.([]any)
		if !ok || len(have) != len(want) {
			return false
		}
		for i := range want {
			if !contains(have[i], want[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(live, want)
}

// Claim says who owns a live object.
type Claim int

// The claims.
const (
	Unowned Claim = iota
	Ours
	Others // another ConfigSync
)

// Decide returns what happens to an object of the commit. live is nil if the object does not exist. dry is what an apply would produce. It
// may be nil only if live is nil or IsCurrent, or claim is Others.
func Decide(want manifest.Object, live, dry *unstructured.Unstructured, adopt v1alpha1.ConfigAdoptPolicy, claim Claim) Item {
	item := Item{ID: want.ID(), File: want.File, Action: Unchanged}
	switch {
	case live == nil:
		item.Action = Create
		return item
	case claim == Others:
		return item.hold("ConfigSync %s owns it: remove it from one of the two", OwnerOf(live))
	case dry == nil:
		return item
	case claim == Unowned && adopt != v1alpha1.ConfigAdoptAlways:
		if differs := changedFields(want, withoutPrune(live), withoutPrune(dry)); len(differs) > 0 {
			return item.hold("it exists, and differs in %s: change git to match it, delete it, or set spec.apply.adoptPolicy: always", strings.Join(differs[:min(len(differs), 3)], ", "))
		}
		item.Action = Configure
		return item
	}
	item.Fields = changedFields(want, live, dry)
	same := digestOf(live) == digestOf(want.Unstructured)
	switch {
	case claim == Ours && OwnerOf(live) != OwnerOf(want.Unstructured):
		item.Action, item.Fields = Repair, append(item.Fields, "metadata.annotations."+v1alpha1.AnnotationConfigSync)
	case same && digestOf(live) != "" && len(item.Fields) > 0:
		item.Action = Repair
	case claim != Ours || !same || len(item.Fields) > 0:
		item.Action = Configure
	}
	return item
}

// withoutPrune returns a copy of an object without the annotation with which its last owner gave it up.
func withoutPrune(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", v1alpha1.AnnotationConfigPrune)
	return u
}

func (i Item) hold(format string, args ...any) Item {
	i.Action, i.Reason, i.Message = Hold, v1alpha1.ReasonNotOwned, fmt.Sprintf(format, args...)
	return i
}

// MatchesEntry reports whether a live object is the one that an entry of the inventory names, so that a run may delete it: it has the UID of
// the entry, and the mark of owner or fields that a ConfigSync has applied. An entry without a UID matches only with both.
func MatchesEntry(e manifest.Entry, live metav1.Object, owner string) bool {
	marked, applied := live.GetAnnotations()[v1alpha1.AnnotationConfigSync] == owner, slices.ContainsFunc(live.GetManagedFields(), byUs)
	return e.UID == live.GetUID() && (marked || applied) || e.UID == "" && marked && applied
}

// MayRecreate reports whether an object with a changed immutable field may be deleted and created again: its manifest allows it, its
// deletion loses no data, and the ConfigSync owns it. e is its entry of the inventory, or nil.
func MayRecreate(want manifest.Object, e *manifest.Entry, live *unstructured.Unstructured) bool {
	return want.GetAnnotations()[v1alpha1.AnnotationConfigRecreate] == "enabled" && !want.ID().NeverPruned() && e != nil && live != nil &&
		!DeletesClaims(live) && MatchesEntry(*e, live, OwnerOf(want.Unstructured))
}

// DeletesClaims reports whether a live object is a StatefulSet whose deletion also deletes its PersistentVolumeClaims.
func DeletesClaims(live *unstructured.Unstructured) bool {
	policy, _, _ := unstructured.NestedString(live.Object, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
	return live.GetKind() == "StatefulSet" && policy == string(appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
}

// DecideRemoval returns what happens to an object of the inventory that the commit does not have. It returns false if the object does not
// exist any more. taken means that another ConfigSync owns it now.
func DecideRemoval(e manifest.Entry, live *unstructured.Unstructured, owner string, taken bool, policy v1alpha1.Prune) (Item, bool) {
	item := Item{ID: e.ID, Action: Prune}
	switch {
	case live == nil:
		return item, false
	case !MatchesEntry(e, live, owner):
		item.Action, item.Message = Release, "it is not the object that was applied"
	case taken:
		item.Action, item.Message = Release, "ConfigSync "+OwnerOf(live)+" owns it now"
	case live.GetDeletionTimestamp() != nil:
		item.Action, item.Message = Keep, "it is being deleted"
	case policy == v1alpha1.PruneNone:
		item.Action, item.Message = Keep, "spec.prune is none"
	case e.NeverPruned():
		item.Action, item.Message = Keep, "this kind is never pruned: delete it yourself if its content is not needed"
	case PruneDisabled(live):
		item.Action, item.Message = Release, "annotation "+v1alpha1.AnnotationConfigPrune+" is disabled"
	}
	return item, true
}

// PruneDisabled reports whether the manifest of a live object disabled its pruning. The annotation of any other manager does not count.
func PruneDisabled(live *unstructured.Unstructured) bool {
	return live.GetAnnotations()[v1alpha1.AnnotationConfigPrune] == "disabled" && ourFields(live).Has(annotationPath(v1alpha1.AnnotationConfigPrune))
}
