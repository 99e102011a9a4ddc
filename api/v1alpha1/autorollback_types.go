package v1alpha1

import "cmp"

// AutoRollbackSpec says when a gateway is rolled back automatically because it cannot load what was synced.
//
// +kubebuilder:validation:XValidation:rule="!has(self.scope) || self.scope != 'rollout' || !has(self.triggers) || size(self.triggers) == 0",message="apply to scope gateway only: with scope rollout, every failure that aborts the rollout rolls its gateways back",fieldPath=".triggers"
type AutoRollbackSpec struct {
	// If true, a gateway that cannot load a commit returns to what it ran before, but not twice in a row from the same commit. The commit
	// is blocked until another one is the target, or until a user requests it again (stoker retry).
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Failures that roll a gateway back. Default: all three. Not with scope rollout, where every failure that aborts the rollout does.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	Triggers []AutoRollbackTrigger `json:"triggers,omitempty"`
	// What is rolled back. gateway: the gateway that cannot load the commit, with its snapshot. rollout: all gateways that an aborted
	// rollout has reached, which needs stages, syncOrder or dryRunBefore. Default: gateway.
	// +optional
	Scope AutoRollbackScope `json:"scope,omitempty"`
}

// AutoRollbackTrigger is a failure that rolls a gateway back: it does not finish its scans, it does not show a project as before, or it
// does not list a config resource.
//
// +kubebuilder:validation:Enum=scanFailure;projectLoadError;configError
type AutoRollbackTrigger string

// The triggers.
const (
	TriggerScanFailure      AutoRollbackTrigger = "scanFailure"
	TriggerProjectLoadError AutoRollbackTrigger = "projectLoadError"
	TriggerConfigError      AutoRollbackTrigger = "configError"
)

// AutoRollbackScope says what is rolled back.
//
// +kubebuilder:validation:Enum=gateway;rollout
type AutoRollbackScope string

// The scopes.
const (
	// AutoRollbackGateway means that each agent decides for its own gateway.
	AutoRollbackGateway AutoRollbackScope = "gateway"
	// AutoRollbackRollout means that the lead decides for all gateways that the rollout has reached.
	AutoRollbackRollout AutoRollbackScope = "rollout"
)

// AutoRollbackTriggers returns all triggers.
func AutoRollbackTriggers() []AutoRollbackTrigger {
	return []AutoRollbackTrigger{TriggerScanFailure, TriggerProjectLoadError, TriggerConfigError}
}

// AutoRollbackScope returns what is rolled back if a gateway cannot load a commit; "" if nothing is.
func (gs *GatewaySync) AutoRollbackScope() AutoRollbackScope {
	if a := gs.Spec.AutoRollback; a != nil && a.Enabled {
		return cmp.Or(a.Scope, AutoRollbackGateway)
	}
	return ""
}
