package lead

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
)

// bare reads of a GatewaySync that cannot be read as a whole what can: who it is, its annotations, and its status, so that
// somebody can be told.
func bare(u *unstructured.Unstructured) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	if u == nil {
		return gs
	}
	gs.Namespace, gs.Name, gs.UID = u.GetNamespace(), u.GetName(), u.GetUID()
	gs.ResourceVersion, gs.Generation = u.GetResourceVersion(), u.GetGeneration()
	gs.DeletionTimestamp, gs.Annotations = u.GetDeletionTimestamp(), u.GetAnnotations()
	if data, err := json.Marshal(u.Object["status"]); err == nil {
		_ = json.Unmarshal(data, &gs.Status) // never fails: what cannot be read is in Unread
	}
	return gs
}
