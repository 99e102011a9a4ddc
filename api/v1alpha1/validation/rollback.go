package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

func validateSnapshots(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	var errs field.ErrorList
	if s := gs.Spec.Snapshots; s != nil {
		if s.RetentionCount < 0 || s.RetentionCount > 100 {
			errs = append(errs, field.Invalid(path.Child("snapshots", "retentionCount"), s.RetentionCount, "must be between 1 and 100"))
		}
		if s.MaxSize != "" && syntax.SnapshotSize(s.MaxSize) == 0 {
			errs = append(errs, fielderr.Invalid(path.Child("snapshots", "maxSize"), s.MaxSize, "must be a number of bytes with Ki, Mi or Gi, such as 1Gi"))
		}
		errs = append(errs, fielderr.OneOf(path.Child("snapshots", "gatewayBackup"), s.GatewayBackup, v1alpha1.GatewayBackupNever, v1alpha1.GatewayBackupBeforeSync)...)
		errs = append(errs, validateStorage(path.Child("snapshots", "storage"), s.Storage)...)
	}
	if r := gs.Spec.Rollback; r != nil && r.ToSnapshot != "" && syntax.SnapshotID(r.ToSnapshot) == "" {
		errs = append(errs, fielderr.Invalid(path.Child("rollback", "toSnapshot"), r.ToSnapshot, "must be the ID of a snapshot, such as area-4-20260212-102000; stoker snapshots lists them"))
	}
	return errs
}

func validateAutoRollback(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	a := gs.Spec.AutoRollback
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	for i, t := range a.Triggers {
		errs = append(errs, fielderr.OneOf(path.Child("triggers").Index(i), t, v1alpha1.AutoRollbackTriggers()...)...)
		if slices.Contains(a.Triggers[:i], t) {
			errs = append(errs, field.Duplicate(path.Child("triggers").Index(i), t))
		}
	}
	errs = append(errs, fielderr.OneOf(path.Child("scope"), a.Scope, v1alpha1.AutoRollbackGateway, v1alpha1.AutoRollbackRollout)...)
	if gs.AutoRollbackScope() == v1alpha1.AutoRollbackGateway && !gs.TakesSnapshots() {
		errs = append(errs, field.Invalid(path.Child("enabled"), true, "needs snapshots: set spec.snapshots.enabled to true"))
	}
	if a.Scope == v1alpha1.AutoRollbackRollout && len(a.Triggers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("triggers"), "apply to scope gateway only: with scope rollout, every failure that aborts the rollout rolls its gateways back"))
	}
	if gs.AutoRollbackScope() == v1alpha1.AutoRollbackRollout && !gs.InSteps() {
		errs = append(errs, field.Invalid(path.Child("scope"), a.Scope, "needs a rollout: set spec.deployment.stages, spec.deployment.syncOrder or spec.validation.dryRunBefore"))
	}
	return errs
}
