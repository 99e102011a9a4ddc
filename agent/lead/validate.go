package lead

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// validate checks a spec. The error invalid means that no gateway can use it. Otherwise flawed has the error of each invalid profile, by
// name; gateways with other profiles continue.
func validate(gs *v1alpha1.GatewaySync) (flawed map[string]error, invalid error) {
	all := plan.Validate(gs)
	if len(all) == 0 {
		return nil, nil
	}
	if errs := validation.GatewaySync(gs); len(errs) > 0 {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	flawed = map[string]error{}
	single := *gs // shallow: gs keeps its profiles
	for name, p := range gs.Spec.Sync.Profiles {
		single.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{name: p}
		if errs := plan.Validate(&single); len(errs) > 0 {
			flawed[name] = errs.ToAggregate()
		}
	}
	if len(flawed) == 0 { // no single profile causes it
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", all.ToAggregate())
	}
	return flawed, nil
}

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
