package lead

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
)

// metadataAndStatus decodes what it can of an invalid GatewaySync: its metadata and status, so that the problem can be reported there.
func metadataAndStatus(u *unstructured.Unstructured) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	if u == nil {
		return gs
	}
	gs.Namespace, gs.Name, gs.UID = u.GetNamespace(), u.GetName(), u.GetUID()
	gs.ResourceVersion, gs.Generation = u.GetResourceVersion(), u.GetGeneration()
	gs.DeletionTimestamp, gs.Annotations = u.GetDeletionTimestamp(), u.GetAnnotations()
	if data, err := json.Marshal(u.Object["status"]); err == nil {
		_ = json.Unmarshal(data, &gs.Status) // never fails: undecodable parts go to Unread
	}
	return gs
}
