package validation

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	maxTargets        = 500
	maxConfigPaths    = 16
	maxConfigExcludes = 64
	maxConfigFiles    = 64
	maxVarsFrom       = 8
	maxDependencies   = 16
	minRefresh        = 5 * time.Second
)

// Patterns of the CRD of ConfigSyncs. The markers of the types have the same text.
const (
	configTypePattern = `^[A-Z][A-Za-z0-9]{0,62}(\.[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$`
	configNamePattern = `^[A-Za-z0-9]([A-Za-z0-9:._-]*[A-Za-z0-9])?$`
)

// ConfigSync returns what is wrong with a ConfigSync, as GatewaySync does. No error contains spec.source.git.repoURL, which
// may have a password.
func ConfigSync(cs *v1alpha1.ConfigSync) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateName(cs.Name)
	errs = append(errs, validateConfigSource(spec.Child("source"), &cs.Spec.Source)...)
	targets := spec.Child("targets")
	if len(cs.Spec.Targets) > maxTargets {
		errs = append(errs, field.TooMany(targets, len(cs.Spec.Targets), maxTargets))
	} else {
		for i := range cs.Spec.Targets {
			errs = append(errs, validateConfigTarget(targets.Index(i), &cs.Spec.Targets[i])...)
		}
	}
	errs = append(errs, validateConfigRender(spec.Child("render"), &cs.Spec.Render)...)
	apply := spec.Child("apply")
	errs = append(errs, fielderr.OneOf(apply.Child("conflictPolicy"), cs.Spec.Apply.ConflictPolicy, v1alpha1.ConfigGitWins, v1alpha1.ConfigHold)...)
	errs = append(errs, fielderr.OneOf(apply.Child("driftPolicy"), cs.Spec.Apply.DriftPolicy, v1alpha1.ConfigDriftRepair, v1alpha1.ConfigDriftReport)...)
	errs = append(errs, fielderr.OneOf(apply.Child("adoptPolicy"), cs.Spec.Apply.AdoptPolicy, v1alpha1.ConfigAdoptEqual, v1alpha1.ConfigAdoptAlways)...)
	errs = append(errs, fielderr.OneOf(spec.Child("prune"), cs.Spec.Prune, v1alpha1.PruneOwned, v1alpha1.PruneNone)...)
	errs = append(errs, validateWebhook(spec.Child("webhook"), &cs.Spec.Webhook)...)
	dependsOn := spec.Child("dependsOn")
	if len(cs.Spec.DependsOn) > maxDependencies {
		errs = append(errs, field.TooMany(dependsOn, len(cs.Spec.DependsOn), maxDependencies))
	} else {
		for i, d := range cs.Spec.DependsOn {
			errs = append(errs, fielderr.OneOf(dependsOn.Index(i).Child("kind"), d.Kind, v1alpha1.DependsOnConfigSync, v1alpha1.DependsOnGatewaySync)...)
			errs = append(errs, required(dependsOn.Index(i).Child("name"), d.Name, objectNamePattern, maxName, "use the name of an object of this namespace")...)
		}
	}
	if k := cs.Spec.KubeConfig; k != nil {
		ref := spec.Child("kubeConfig", "secretRef")
		errs = append(errs, validateConfigRef(ref, &k.SecretRef.ConfigObjectRef)...)
		errs = append(errs, optional(ref.Child("key"), k.SecretRef.Key, keyPattern, 253, "use a key of the Secret")...)
	}
	rollback := spec.Child("rollbackOnFailure")
	errs = append(errs, fielderr.OneOf(rollback, cs.Spec.RollbackOnFailure, v1alpha1.ConfigRollbackNone, v1alpha1.ConfigRollbackLastGood)...)
	if cs.Spec.RollbackOnFailure == v1alpha1.ConfigRollbackLastGood && (cs.Spec.Source.Git == nil || !cs.Spec.Apply.Waits()) {
		errs = append(errs, field.Forbidden(rollback, "LastGood needs source.git, and apply.wait"))
	}
	errs = append(errs, fielderr.OneOf(spec.Child("deletionPolicy"), cs.Spec.DeletionPolicy, v1alpha1.ConfigOrphan, v1alpha1.ConfigDelete)...)
	errs = append(errs, optional(spec.Child("serviceAccountName"), cs.Spec.ServiceAccountName, objectNamePattern, 253, "use the name of a ServiceAccount of this namespace")...)
	errs = append(errs, validateDuration(spec.Child("progressDeadline"), cs.Spec.ProgressDeadline, v1alpha1.MinDuration)...)
	return append(errs, validateDuration(spec.Child("refreshInterval"), cs.Spec.RefreshInterval, minRefresh)...)
}

func validateConfigSource(path *field.Path, source *v1alpha1.ConfigSource) field.ErrorList {
	if (source.Git == nil) == (source.GatewaySync == nil) {
		return field.ErrorList{field.Required(path, "set one of git and gatewaySync")}
	}
	if f := source.GatewaySync; f != nil {
		path = path.Child("gatewaySync")
		errs := required(path.Child("name"), f.Name, objectNamePattern, maxName, "use the name of a GatewaySync of this namespace")
		return append(errs, validateConfigPaths(path, f.Path, f.Overlays, f.Excludes)...)
	}
	return validateConfigGit(path.Child("git"), source.Git)
}

func validateConfigGit(path *field.Path, git *v1alpha1.ConfigGit) field.ErrorList {
	errs := validateRepo(path.Child("repoURL"), git.RepoURL)
	if strings.HasPrefix(git.RepoURL, "/") || strings.HasPrefix(git.RepoURL, "file:") {
		errs = append(errs, field.Invalid(path.Child("repoURL"), field.OmitValueType{}, "is a directory; use https://host/path, ssh://host/path, user@host:path or http://host/path"))
	}
	if syntax.IsRegistry(git.RepoURL) {
		errs = append(errs, field.Invalid(path.Child("repoURL"), field.OmitValueType{}, "is a registry; use https://host/path, ssh://host/path, user@host:path or http://host/path"))
	}
	errs = append(errs, validateConfigPaths(path, git.Path, git.Overlays, git.Excludes)...)
	for _, f := range []struct{ name, ref string }{{"branch", git.Branch}, {"revision", git.Revision}} {
		if problem := syntax.GitRefProblem(f.ref); f.ref != "" && problem != "" {
			errs = append(errs, fielderr.Invalid(path.Child(f.name), f.ref, problem+"; name a branch, a tag, or a commit"))
		}
	}
	errs = append(errs, validatePatterns(path.Child("allowedRefs"), git.AllowedRefs, 64, syntax.MaxRef, PatternProblem)...)
	errs = append(errs, fielderr.OneOf(path.Child("authMethod"), git.AuthMethod, v1alpha1.ConfigAuthMethods...)...)
	errs = append(errs, validateConfigRef(path.Child("authSecretRef"), git.AuthSecretRef)...)
	needsSecret := git.AuthMethod != "" && git.AuthMethod != v1alpha1.ConfigAuthNone
	switch {
	case needsSecret != (git.AuthSecretRef != nil):
		errs = append(errs, field.Forbidden(path.Child("authSecretRef"), "authMethod and authSecretRef go together: set both, or neither"))
	case needsSecret && (git.AuthMethod == v1alpha1.ConfigAuthSSH) == isHTTP(git.RepoURL):
		errs = append(errs, field.Forbidden(path.Child("authMethod"), "must match repoURL: ssh for an ssh address, https or githubApp for an http address"))
	}
	return errs
}

func isHTTP(repo string) bool {
	return strings.HasPrefix(repo, "http://") || strings.HasPrefix(repo, "https://")
}

func validateConfigPaths(path *field.Path, p string, overlays []v1alpha1.ConfigPath, excludes []string) field.ErrorList {
	errs := validatePatterns(path.Child("excludes"), excludes, maxConfigExcludes, maxPattern, PathPatternProblem)
	if p != "" {
		errs = append(errs, validatePath(path.Child("path"), p)...)
	}
	return append(errs, validateConfigPathList(path.Child("overlays"), overlays)...)
}

func validateConfigPathList(path *field.Path, paths []v1alpha1.ConfigPath) (errs field.ErrorList) {
	if len(paths) > maxConfigPaths {
		return field.ErrorList{field.TooMany(path, len(paths), maxConfigPaths)}
	}
	for i, p := range paths {
		errs = append(errs, validatePath(path.Index(i), string(p))...)
	}
	return errs
}

func validateConfigRef(path *field.Path, ref *v1alpha1.ConfigObjectRef) field.ErrorList {
	if ref == nil {
		return nil
	}
	return required(path.Child("name"), ref.Name, objectNamePattern, 253, "use the name of an object of this namespace")
}

func validateConfigTarget(path *field.Path, t *v1alpha1.ConfigTarget) field.ErrorList {
	errs := required(path.Child("type"), t.Type, configTypePattern, 317, "use a kind such as ConfigMap, or kind and group such as StatefulSet.apps")
	errs = append(errs, optional(path.Child("namespace"), t.Namespace, objectNamePattern, 63, "use the name of a namespace")...)
	errs = append(errs, optional(path.Child("name"), t.Name, configNamePattern, 253, "use the name of an object")...)
	files := path.Child("fromFiles")
	switch {
	case t.FromFiles == nil:
		return errs
	case len(t.FromFiles) == 0:
		return append(errs, field.Required(files, "name a file, or leave fromFiles out"))
	case len(t.FromFiles) > maxConfigFiles:
		return append(errs, field.TooMany(files, len(t.FromFiles), maxConfigFiles))
	case !slices.Contains([]string{"ConfigMap", "Secret"}, t.Type) || t.Name == "":
		errs = append(errs, field.Forbidden(path, "fromFiles makes a ConfigMap or a Secret with a name: set type and name"))
	}
	for i, f := range t.FromFiles {
		errs = append(errs, required(files.Index(i).Child("path"), f.Path, filePattern, maxPattern, "use the path of a file, relative to the root of the repository")...)
		errs = append(errs, optional(files.Index(i).Child("key"), f.Key, keyPattern, 253, "use a key of the object's data")...)
	}
	return errs
}

func validateConfigRender(path *field.Path, r *v1alpha1.ConfigRender) field.ErrorList {
	errs := validateVars(path.Child("vars"), r.Vars)
	errs = append(errs, fielderr.OneOf(path.Child("kustomize"), r.Kustomize, v1alpha1.ConfigKustomizeAuto, v1alpha1.ConfigKustomizeNever)...)
	errs = append(errs, optional(path.Child("releaseName"), r.ReleaseName, objectNamePattern, 53, "use the name of a release")...)
	errs = append(errs, validateConfigPathList(path.Child("valuesFiles"), r.ValuesFiles)...)
	path = path.Child("varsFrom")
	if len(r.VarsFrom) > maxVarsFrom {
		return append(errs, field.TooMany(path, len(r.VarsFrom), maxVarsFrom))
	}
	for i, v := range r.VarsFrom {
		if (v.ConfigMapRef == nil) == (v.SecretRef == nil) {
			errs = append(errs, field.Required(path.Index(i), "set one of configMapRef and secretRef"))
		}
		errs = append(errs, validateConfigRef(path.Index(i).Child("configMapRef"), v.ConfigMapRef)...)
		errs = append(errs, validateConfigRef(path.Index(i).Child("secretRef"), v.SecretRef)...)
	}
	return errs
}
