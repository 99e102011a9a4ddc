package v1alpha1

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxTargets      = 500
	maxOverlays     = 16
	maxConfigFiles  = 64
	maxVarsFrom     = 8
	maxDependencies = 16
	minRefresh      = 5 * time.Second
)

// Patterns of the CRD for ConfigSyncs. They are the markers' text.
const (
	configTypePattern = `^[A-Z][A-Za-z0-9]{0,62}(\.[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$`
	configNamePattern = `^[A-Za-z0-9]([A-Za-z0-9:._-]*[A-Za-z0-9])?$`
)

// ValidateConfigSync says what is wrong with a ConfigSync, as Validate does. No error holds spec.source.git.repoURL, which may
// carry a password.
func ValidateConfigSync(cs *ConfigSync) field.ErrorList {
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
	errs = append(errs, oneOf(apply.Child("conflictPolicy"), cs.Spec.Apply.ConflictPolicy, ConfigGitWins, ConfigHold)...)
	errs = append(errs, oneOf(apply.Child("driftPolicy"), cs.Spec.Apply.DriftPolicy, ConfigDriftRepair, ConfigDriftReport)...)
	errs = append(errs, oneOf(apply.Child("adoptPolicy"), cs.Spec.Apply.AdoptPolicy, ConfigAdoptEqual, ConfigAdoptAlways)...)
	errs = append(errs, oneOf(spec.Child("prune"), cs.Spec.Prune, PruneOwned, PruneNone)...)
	errs = append(errs, validateWebhook(spec.Child("webhook"), &cs.Spec.Webhook)...)
	dependsOn := spec.Child("dependsOn")
	if len(cs.Spec.DependsOn) > maxDependencies {
		errs = append(errs, field.TooMany(dependsOn, len(cs.Spec.DependsOn), maxDependencies))
	} else {
		for i, d := range cs.Spec.DependsOn {
			errs = append(errs, oneOf(dependsOn.Index(i).Child("kind"), d.Kind, DependsOnConfigSync, DependsOnGatewaySync)...)
			errs = append(errs, matches(dependsOn.Index(i).Child("name"), d.Name, secretNamePattern, maxName, true, "use the name of an object of this namespace")...)
		}
	}
	rollback := spec.Child("rollbackOnFailure")
	errs = append(errs, oneOf(rollback, cs.Spec.RollbackOnFailure, ConfigRollbackNone, ConfigRollbackLastGood)...)
	if cs.Spec.RollbackOnFailure == ConfigRollbackLastGood && (cs.Spec.Source.Git == nil || !cs.Spec.Apply.Waits()) {
		errs = append(errs, field.Forbidden(rollback, "LastGood needs source.git, and apply.wait"))
	}
	errs = append(errs, oneOf(spec.Child("deletionPolicy"), cs.Spec.DeletionPolicy, ConfigOrphan, ConfigDelete)...)
	errs = append(errs, matches(spec.Child("serviceAccountName"), cs.Spec.ServiceAccountName, secretNamePattern, 253, false, "use the name of a ServiceAccount of this namespace")...)
	errs = append(errs, validateDuration(spec.Child("progressDeadline"), cs.Spec.ProgressDeadline)...)
	if d, err := cs.Spec.Refresh(); err == nil && d < minRefresh {
		return append(errs, invalid(spec.Child("refreshInterval"), cs.Spec.RefreshInterval, "is out of range; use from 5s to 24h"))
	}
	return append(errs, validateDuration(spec.Child("refreshInterval"), cs.Spec.RefreshInterval)...)
}

func validateConfigSource(path *field.Path, source *ConfigSource) field.ErrorList {
	if (source.Git == nil) == (source.GatewaySync == nil) {
		return field.ErrorList{field.Required(path, "give one of git and gatewaySync")}
	}
	if f := source.GatewaySync; f != nil {
		path = path.Child("gatewaySync")
		errs := matches(path.Child("name"), f.Name, secretNamePattern, maxName, true, "use the name of a GatewaySync of this namespace")
		return append(errs, validateConfigPaths(path, f.Path, f.Overlays)...)
	}
	git := source.Git
	path = path.Child("git")
	errs := validateRepo(path.Child("repoURL"), git.RepoURL)
	if strings.HasPrefix(git.RepoURL, "/") || strings.HasPrefix(git.RepoURL, "file:") {
		errs = append(errs, field.Invalid(path.Child("repoURL"), field.OmitValueType{}, "is a directory; use https://host/path, ssh://host/path, user@host:path or http://host/path"))
	}
	errs = append(errs, validateConfigPaths(path, git.Path, git.Overlays)...)
	for name, ref := range map[string]string{"branch": git.Branch, "revision": git.Revision} {
		if problem := refProblem(ref); ref != "" && problem != "" {
			errs = append(errs, invalid(path.Child(name), ref, problem+"; name a branch, a tag, or a commit"))
		}
	}
	errs = append(errs, validatePatterns(path.Child("allowedRefs"), git.AllowedRefs, 64, maxRef, patternProblem)...)
	errs = append(errs, oneOf(path.Child("authMethod"), git.AuthMethod, ConfigAuthNone, ConfigAuthSSH, ConfigAuthHTTPS, ConfigAuthGitHubApp)...)
	errs = append(errs, validateConfigRef(path.Child("authSecretRef"), git.AuthSecretRef)...)
	switch none := git.AuthMethod == "" || git.AuthMethod == ConfigAuthNone; {
	case none != (git.AuthSecretRef == nil):
		errs = append(errs, field.Forbidden(path.Child("authSecretRef"), "authMethod and authSecretRef go together: set both, or neither"))
	case git.AuthMethod == ConfigAuthSSH && strings.HasPrefix(git.RepoURL, "http"):
		errs = append(errs, field.Forbidden(path.Child("authMethod"), "ssh needs an ssh address in repoURL"))
	}
	return errs
}

func validateConfigPaths(path *field.Path, p string, overlays []ConfigPath) field.ErrorList {
	var errs field.ErrorList
	if p != "" {
		errs = validatePath(path.Child("path"), p)
	}
	path = path.Child("overlays")
	if len(overlays) > maxOverlays {
		return append(errs, field.TooMany(path, len(overlays), maxOverlays))
	}
	for i, o := range overlays {
		errs = append(errs, validatePath(path.Index(i), string(o))...)
	}
	return errs
}

func validateConfigRef(path *field.Path, ref *ConfigObjectRef) field.ErrorList {
	if ref == nil {
		return nil
	}
	return matches(path.Child("name"), ref.Name, secretNamePattern, 253, true, "use the name of an object of this namespace")
}

func validateConfigTarget(path *field.Path, t *ConfigTarget) field.ErrorList {
	errs := matches(path.Child("type"), t.Type, configTypePattern, 317, true, "use a kind such as ConfigMap, or kind and group such as StatefulSet.apps")
	errs = append(errs, matches(path.Child("namespace"), t.Namespace, secretNamePattern, 63, false, "use the name of a namespace")...)
	errs = append(errs, matches(path.Child("name"), t.Name, configNamePattern, 253, false, "use the name of an object")...)
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
		errs = append(errs, matches(files.Index(i).Child("path"), f.Path, filePattern, maxPattern, true, "use the path of a file, relative to the root of the repository")...)
		errs = append(errs, matches(files.Index(i).Child("key"), f.Key, secretKeyPattern, 253, false, "use a key of the object's data")...)
	}
	return errs
}

func validateConfigRender(path *field.Path, r *ConfigRender) field.ErrorList {
	errs := validateVars(path.Child("vars"), r.Vars)
	errs = append(errs, oneOf(path.Child("kustomize"), r.Kustomize, ConfigKustomizeAuto, ConfigKustomizeNever)...)
	path = path.Child("varsFrom")
	if len(r.VarsFrom) > maxVarsFrom {
		return append(errs, field.TooMany(path, len(r.VarsFrom), maxVarsFrom))
	}
	for i, v := range r.VarsFrom {
		if (v.ConfigMapRef == nil) == (v.SecretRef == nil) {
			errs = append(errs, field.Required(path.Index(i), "give one of configMapRef and secretRef"))
		}
		errs = append(errs, validateConfigRef(path.Index(i).Child("configMapRef"), v.ConfigMapRef)...)
		errs = append(errs, validateConfigRef(path.Index(i).Child("secretRef"), v.SecretRef)...)
	}
	return errs
}

// Refresh returns how often the ConfigSync is compared with git and with the cluster. The error names the field.
func (s *ConfigSyncSpec) Refresh() (time.Duration, error) {
	return duration("spec.refreshInterval", s.RefreshInterval, DefaultRefreshInterval)
}

// Account returns the name of the ServiceAccount with whose rights objects are applied.
func (s *ConfigSyncSpec) Account() string { return or(s.ServiceAccountName, DefaultConfigAccount) }

// Deadline returns how long a run waits for healthy objects. The error names the field.
func (s *ConfigSyncSpec) Deadline() (time.Duration, error) {
	return duration("spec.progressDeadline", s.ProgressDeadline, DefaultProgressDeadline)
}

// Paths returns the path and the overlays of the source, as the spec has them.
func (s *ConfigSource) Paths() (path string, overlays []ConfigPath) {
	switch {
	case s.Git != nil:
		path, overlays = s.Git.Path, s.Git.Overlays
	case s.GatewaySync != nil:
		path, overlays = s.GatewaySync.Path, s.GatewaySync.Overlays
	}
	return or(path, "."), overlays
}

// Desired returns the ref to resolve: revision, else branch, else HEAD.
func (g *ConfigGit) Desired() string { return or(g.Revision, g.Branch, "HEAD") }

// Waits reports whether a run waits for healthy objects.
func (a *ConfigApply) Waits() bool { return a.Wait == nil || *a.Wait }

// Paused reports whether the ConfigSync is paused, by its spec or by the annotation.
func (cs *ConfigSync) Paused() bool {
	return cs.Spec.Paused || cs.Annotations[AnnotationPaused] == "true"
}

// Requests implements Requestable.
func (cs *ConfigSync) Requests() Requests {
	q := Requests{Annotations: cs.Annotations, Status: cs.Status.Request}
	switch git, follow := cs.Spec.Source.Git, cs.Spec.Source.GatewaySync; {
	case git != nil:
		q.Repo, q.Spec, q.Field = git.RepoURL, git.Desired(), "the ref of spec.source.git"
	case follow != nil:
		q.Fixed = "ConfigSync " + cs.Name + " applies the commit of GatewaySync " + follow.Name + ", so that it has no ref of its own: request the ref of the GatewaySync"
	default:
		q.Fixed = "spec.source names no repository"
	}
	return q
}

// WebhookSpec implements Requestable.
func (cs *ConfigSync) WebhookSpec() *WebhookSpec { return &cs.Spec.Webhook }

// RequestKey returns the key of the requests of cs, for status.observedRequest.
func (cs *ConfigSync) RequestKey() string { return cs.Requests().Key() }

// Answered reports whether the status describes the current spec and request.
func (cs *ConfigSync) Answered() bool {
	st := &cs.Status
	return st.ObservedGeneration == cs.Generation && st.ObservedRequest == cs.RequestKey() && meta.FindStatusCondition(st.Conditions, ConditionReady) != nil
}

// Standing implements Requestable.
func (cs *ConfigSync) Standing() Standing {
	st, q := &cs.Status, cs.Requests()
	s := Standing{Answered: cs.Answered(), Rollback: st.Rollback, LastGood: st.LastGood, History: st.History}
	if d, err := q.Desired(""); err == nil {
		s.Ref = d.Ref
	}
	if q.Fixed != "" {
		s.Ref = st.SourceRef
	}
	if s.Ref == st.SourceRef && meta.IsStatusConditionTrue(st.Conditions, ConditionRefResolved) {
		s.Commit = st.SourceRevision
	}
	return s
}

// RollbackNow returns what a rollback would request now, for status.rollback; nil if unknown. It lapses when the ref of the spec moves on
// from the commit that is rolled back. If a request led there, a rollback replaces it and keeps the condition of an earlier rollback.
func (cs *ConfigSync) RollbackNow() *Rollback {
	q, is := cs.Requests(), cs.Standing()
	if q.Fixed != "" || is.LastGood == nil || !IsCommit(is.LastGood.Commit) {
		return nil
	}
	r := &Rollback{Commit: is.LastGood.Commit}
	switch d, err := q.Desired(""); {
	case err != nil: // a rollback replaces the request
	case d.Override:
		if unless := q.Unless(); IsCommit(unless) {
			r.Unless = unless
		}
	case IsCommit(q.Spec):
		r.Unless = strings.ToLower(q.Spec)
	case is.Commit != "":
		r.Unless = is.Commit
	default:
		return nil // until git was polled
	}
	if strings.EqualFold(is.Ref, r.Commit) || is.Commit == r.Commit {
		r.Commit = ""
	}
	return r
}

// ConfirmsDeletion reports whether the annotation stoker.io/confirm-deletion names a commit.
func (cs *ConfigSync) ConfirmsDeletion(commit string) bool {
	return ConfirmsDeletion(cs.Annotations[AnnotationConfirmDeletion], commit)
}

// Owner is the value with which objects of this ConfigSync are marked.
func (cs *ConfigSync) Owner() string { return cs.Namespace + "/" + cs.Name }

// TruncateMessage shortens a message to what a field of the status takes.
func TruncateMessage(s string) string {
	const most = 1024
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
