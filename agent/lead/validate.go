package lead

import (
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// validate returns why a spec is invalid, or the profiles that are invalid only for the gateways that use them, by name.
func validate(gs *v1alpha1.GatewaySync) (flawed map[string]error, invalid error) {
	all := plan.Validate(gs)
	if len(all) == 0 {
		return nil, nil
	}
	if errs := validation.GatewaySync(gs); len(errs) > 0 {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	flawed = map[string]error{}
	one := *gs
	for name, p := range gs.Spec.Sync.Profiles {
		one.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{name: p}
		if errs := plan.Validate(&one); len(errs) > 0 {
			flawed[name] = errs.ToAggregate()
		}
	}
	if len(flawed) == 0 { // no single profile causes it
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", all.ToAggregate())
	}
	return flawed, nil
}
