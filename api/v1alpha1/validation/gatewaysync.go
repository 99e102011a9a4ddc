// Package validation checks GatewaySyncs and ConfigSyncs: the rules of the CRD, for objects that no API server has seen, and rules that a
// CRD cannot express, such as the syntax of patterns.
package validation

import (
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const maxName = 48

// GatewaySync returns what is wrong with a GatewaySync. Each error names the field, what is wrong and what to do. No error
// contains spec.git.repo, which may have a password.
func GatewaySync(gs *v1alpha1.GatewaySync) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateName(gs.Name)
	errs = append(errs, validateGit(spec.Child("git"), &gs.Spec.Git)...)
	errs = append(errs, validateDuration(spec.Child("polling", "interval"), gs.Spec.Polling.Interval, v1alpha1.MinDuration)...)
	errs = append(errs, validateDuration(spec.Child("progressDeadline"), gs.Spec.ProgressDeadline, v1alpha1.MinDuration)...)
	errs = append(errs, validateWebhook(spec.Child("webhook"), &gs.Spec.Webhook)...)
	errs = append(errs, validateGateway(spec.Child("gateway"), &gs.Spec.Gateway)...)
	errs = append(errs, validateAgent(spec.Child("agent", "image"), &gs.Spec.Agent.Image)...)
	errs = append(errs, validateBidirectional(spec.Child("bidirectional"), gs)...)
	errs = append(errs, validateSnapshots(spec, gs)...)
	errs = append(errs, validateAutoRollback(spec.Child("autoRollback"), gs)...)
	errs = append(errs, validateValidation(spec.Child("validation"), gs)...)
	errs = append(errs, validateAlerting(spec.Child("alerting"), gs.Spec.Alerting)...)
	errs = append(errs, schedule.Validate(spec.Child("deployment"), gs.Spec.Deployment)...)
	return append(errs, validateSync(spec.Child("sync"), &gs.Spec.Sync)...)
}

// Warnings returns what is valid but unwise. No warning contains a secret.
func Warnings(gs *v1alpha1.GatewaySync) []string {
	var out []string
	git, gateway := &gs.Spec.Git, &gs.Spec.Gateway
	for _, plain := range []struct{ scheme, use string }{{"http://", "https://"}, {"oci+http://", "oci://"}} {
		if strings.HasPrefix(git.Repo, plain.scheme) {
			out = append(out, "spec.git.repo: "+plain.scheme+" is not encrypted: others can read and change credentials and files on the network. Use "+plain.use)
		}
	}
	if hasPassword(git.Repo) {
		out = append(out, "spec.git.repo: the URL contains a password, which is visible to all readers of this object. Use spec.git.auth.token")
	}
	if git.Auth != nil && git.Auth.SSHKey != nil && git.Auth.SSHKey.InsecureIgnoreHostKey {
		out = append(out, "spec.git.auth.sshKey.insecureIgnoreHostKey: the git host is not checked. Use knownHosts")
	}
	if b := gs.Spec.Bidirectional; b != nil && b.Auth != nil && b.Auth.SSHKey != nil && b.Auth.SSHKey.InsecureIgnoreHostKey {
		out = append(out, "spec.bidirectional.auth.sshKey.insecureIgnoreHostKey: the git host is not checked. Use knownHosts")
	}
	if gateway.TLSConfig != nil && gateway.TLSConfig.InsecureSkipVerify {
		out = append(out, "spec.gateway.tlsConfig.insecureSkipVerify: the gateway's certificate is not checked. Use caSecretRef")
	}
	out = append(out, storageWarnings(gs.Spec.Snapshots)...)
	if w := schedule.Unmatched(gs); w != "" {
		out = append(out, w)
	}
	if gateway.APIKey() == nil && !gateway.ManagedKey() {
		out = append(out, "spec.gateway.api: without an API key, files are written but the gateway does not scan them")
	}
	return out
}

// hasPassword reports whether a URL contains user:password@. A user name alone is not a secret.
func hasPassword(repo string) bool {
	_, rest, ok := strings.Cut(repo, "://")
	if !ok {
		return false
	}
	authority, _, _ := strings.Cut(rest, "/")
	i := strings.LastIndexByte(authority, '@')
	return i > 0 && strings.Contains(authority[:i], ":")
}

func validateName(name string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "give the object a name")}
	case len(name) > maxName:
		return field.ErrorList{field.TooLong(path, name, maxName)}
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return field.ErrorList{fielderr.Invalid(path, name, "use lower-case letters, digits, '-' and '.', a letter or digit first and last")}
	}
	return nil
}

func validateDuration(path *field.Path, value string, least time.Duration) field.ErrorList {
	if value == "" {
		return nil
	}
	if _, problem := syntax.ParseDuration(value, least, v1alpha1.MaxDuration); problem != "" {
		return field.ErrorList{fielderr.Invalid(path, value, problem)}
	}
	return nil
}

func validateWebhook(path *field.Path, w *v1alpha1.WebhookSpec) field.ErrorList {
	errs := validatePatterns(path.Child("followTags"), w.FollowTags, 32, syntax.MaxRef, PatternProblem)
	return append(errs, validateSecret(path.Child("secretRef"), w.SecretRef)...)
}

func validateGateway(path *field.Path, g *v1alpha1.GatewaySpec) field.ErrorList {
	var errs field.ErrorList
	if g.Port != nil && (*g.Port < 1 || *g.Port > 65535) {
		errs = append(errs, field.Invalid(path.Child("port"), *g.Port, "use from 1 to 65535; Ignition's defaults are 8088 and 8043"))
	}
	if g.API != nil {
		if (g.API.SecretName != "") == g.API.Managed {
			errs = append(errs, field.Invalid(path.Child("api"), "", "set one of secretName and managed"))
		}
		errs = append(errs, optional(path.Child("api", "secretName"), g.API.SecretName, objectNamePattern, 253, "use the name of a Secret")...)
		errs = append(errs, optional(path.Child("api", "secretKey"), g.API.SecretKey, keyPattern, 253, "use a key of that Secret")...)
	}
	if t := g.TLSConfig; t != nil {
		errs = append(errs, validateSecret(path.Child("tlsConfig", "caSecretRef"), t.CASecretRef)...)
		errs = append(errs, optional(path.Child("tlsConfig", "serverName"), t.ServerName, hostPattern, 253, "use the host name of the certificate")...)
	}
	return errs
}

func validateAgent(path *field.Path, image *v1alpha1.AgentImage) field.ErrorList {
	errs := optional(path.Child("repository"), image.Repository, imagePattern, 255, "use registry and repository, such as registry.example.com/stoker/agent; a tag goes into tag, a digest into digest")
	errs = append(errs, optional(path.Child("tag"), image.Tag, tagPattern, 128, "use a tag of the image")...)
	errs = append(errs, optional(path.Child("digest"), image.Digest, digestPattern, 71, "use sha256: and 64 lower-case hex digits")...)
	return append(errs, fielderr.OneOf(path.Child("pullPolicy"), image.PullPolicy, "Always", "IfNotPresent", "Never")...)
}

func validateSecret(path *field.Path, ref *v1alpha1.SecretKeyRef) field.ErrorList {
	if ref == nil {
		return nil
	}
	errs := required(path.Child("name"), ref.Name, objectNamePattern, 253, "use the name of a Secret")
	return append(errs, required(path.Child("key"), ref.Key, keyPattern, 253, "use a key of that Secret")...)
}

// required checks a string by the pattern and the maximum length of the CRD.
func required(path *field.Path, value, pattern string, maxLength int, advice string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, advice)}
	}
	return optional(path, value, pattern, maxLength, advice)
}

// optional is like required, but accepts an empty value.
func optional(path *field.Path, value, pattern string, maxLength int, advice string) field.ErrorList {
	switch {
	case value == "":
		return nil
	case utf8.RuneCountInString(value) > maxLength:
		return field.ErrorList{field.TooLongCharacters(path, value, maxLength)}
	case !regexp.MustCompile(pattern).MatchString(value):
		return field.ErrorList{fielderr.Invalid(path, value, advice)}
	}
	return nil
}

// validatePatterns checks a list of patterns. problemOf returns what is wrong with one, or "".
func validatePatterns(path *field.Path, patterns []string, maxItems, maxLength int, problemOf func(string) string) field.ErrorList {
	if len(patterns) > maxItems {
		return field.ErrorList{field.TooMany(path, len(patterns), maxItems)}
	}
	var errs field.ErrorList
	for i, p := range patterns {
		switch problem := problemOf(p); {
		case p == "":
			errs = append(errs, field.Required(path.Index(i), "write a pattern, or remove the line"))
		case utf8.RuneCountInString(p) > maxLength:
			errs = append(errs, field.TooLongCharacters(path.Index(i), p, maxLength))
		case problem != "":
			errs = append(errs, fielderr.Invalid(path.Index(i), p, problem))
		}
	}
	return errs
}

// ForGateway returns what is wrong with the parts of the spec that one gateway uses: the defaults, its profile p with this name, and the
// maintenance windows. p is nil if the GatewaySync has no profiles (service-path mode).
func ForGateway(gs *v1alpha1.GatewaySync, name string, p *v1alpha1.SyncProfile) field.ErrorList {
	path := field.NewPath("spec", "sync")
	errs := validateSettings(path.Child("defaults"), &gs.Spec.Sync.Defaults)
	if p != nil {
		errs = append(errs, validateProfile(member(path.Child("profiles"), name), name, p, gs.Spec.Sync.Defaults.Prune)...)
	}
	_, windows := schedule.ParseWindows(gs.MaintenanceWindows())
	return append(errs, windows...)
}

// member is the path of a member of a map.
func member(path *field.Path, name string) *field.Path { return path.Key(fielderr.Shorten(name)) }
