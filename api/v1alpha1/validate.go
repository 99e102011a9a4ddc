package v1alpha1

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxName = 48

// Validate says what is wrong with a GatewaySync: the rules of the CRD, and some that a CRD cannot say (patterns, names of
// profiles, paths of JSON values). Each error names the field, what is wrong and what to do. No error holds spec.git.repo,
// which may carry a password.
func Validate(gs *GatewaySync) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateName(gs.Name)
	errs = append(errs, validateGit(spec.Child("git"), &gs.Spec.Git)...)
	errs = append(errs, validateDuration(spec.Child("polling", "interval"), gs.Spec.Polling.Interval)...)
	errs = append(errs, validateDuration(spec.Child("progressDeadline"), gs.Spec.ProgressDeadline)...)
	errs = append(errs, validateWebhook(spec.Child("webhook"), &gs.Spec.Webhook)...)
	errs = append(errs, validateGateway(spec.Child("gateway"), &gs.Spec.Gateway)...)
	errs = append(errs, validateAgent(spec.Child("agent", "image"), &gs.Spec.Agent.Image)...)
	errs = append(errs, validateBidirectional(spec.Child("bidirectional"), gs)...)
	errs = append(errs, validateSnapshots(spec, gs)...)
	errs = append(errs, validateAutoRollback(spec.Child("autoRollback"), gs)...)
	errs = append(errs, validateValidation(spec.Child("validation"), gs)...)
	errs = append(errs, validateAlerting(spec.Child("alerting"), gs.Spec.Alerting)...)
	_, windows := ParseWindows(gs.windows(), "")
	errs = append(errs, windows...)
	errs = append(errs, validateDeployment(spec.Child("deployment"), gs.Spec.Deployment)...)
	return append(errs, validateSync(spec.Child("sync"), &gs.Spec.Sync)...)
}

// Warnings says what is allowed and not wise. No warning holds a secret.
func Warnings(gs *GatewaySync) []string {
	var out []string
	git, gateway := &gs.Spec.Git, &gs.Spec.Gateway
	if strings.HasPrefix(git.Repo, "http://") {
		out = append(out, "spec.git.repo: http:// is not encrypted; credentials and files can be read and changed on their way. Use https://")
	}
	if hasPassword(git.Repo) {
		out = append(out, "spec.git.repo: the URL holds a password that everybody can read who may read this object. Use spec.git.auth.token")
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
	if gateway.APIKey() == nil {
		out = append(out, "spec.gateway.api: without an API token files are synced, but the gateway is not asked to scan them")
	}
	return out
}

// hasPassword looks for user:password@ in a URL. A user name alone is no secret.
func hasPassword(repo string) bool {
	_, rest, ok := strings.Cut(repo, "://")
	if !ok {
		return false
	}
	authority, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@')
	return at > 0 && strings.Contains(authority[:at], ":")
}

func validateName(name string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "give the GatewaySync a name")}
	case len(name) > maxName:
		return field.ErrorList{field.TooLong(path, name, maxName)}
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return field.ErrorList{invalid(path, name, "use lower-case letters, digits, '-' and '.', a letter or digit first and last")}
	}
	return nil
}

func validateDuration(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return nil
	}
	if _, problem := parseDuration(value); problem != "" {
		return field.ErrorList{invalid(path, value, problem)}
	}
	return nil
}

func validateWebhook(path *field.Path, w *WebhookSpec) field.ErrorList {
	errs := validatePatterns(path.Child("followTags"), w.FollowTags, 32, maxRef, patternProblem)
	return append(errs, validateSecret(path.Child("secretRef"), w.SecretRef)...)
}

func validateGateway(path *field.Path, g *GatewaySpec) field.ErrorList {
	var errs field.ErrorList
	if g.Port != nil && (*g.Port < 1 || *g.Port > 65535) {
		errs = append(errs, field.Invalid(path.Child("port"), *g.Port, "use from 1 to 65535; Ignition's own are 8088 and 8043"))
	}
	if g.API != nil && g.APIKeySecretRef != nil {
		errs = append(errs, field.Forbidden(path.Child("apiKeySecretRef"), "api says the same thing: keep one of them"))
	}
	errs = append(errs, validateSecret(path.Child("apiKeySecretRef"), g.APIKeySecretRef)...)
	if g.API != nil {
		errs = append(errs, matches(path.Child("api", "secretName"), g.API.SecretName, secretNamePattern, 253, true, "use the name of a Secret")...)
		errs = append(errs, matches(path.Child("api", "secretKey"), g.API.SecretKey, secretKeyPattern, 253, false, "use a key of that Secret")...)
	}
	if t := g.TLSConfig; t != nil {
		errs = append(errs, validateSecret(path.Child("tlsConfig", "caSecretRef"), t.CASecretRef)...)
		errs = append(errs, matches(path.Child("tlsConfig", "serverName"), t.ServerName, hostPattern, 253, false, "use the host name of the certificate")...)
	}
	return errs
}

func validateAgent(path *field.Path, image *AgentImage) field.ErrorList {
	errs := matches(path.Child("repository"), image.Repository, imagePattern, 255, false, "use registry and repository, such as registry.example.com/stoker/agent; a tag goes into tag, a digest into digest")
	errs = append(errs, matches(path.Child("tag"), image.Tag, tagPattern, 128, false, "use a tag of the image")...)
	errs = append(errs, matches(path.Child("digest"), image.Digest, digestPattern, 71, false, "use sha256: and 64 lower-case hex digits")...)
	return append(errs, oneOf(path.Child("pullPolicy"), image.PullPolicy, "Always", "IfNotPresent", "Never")...)
}

func validateSecret(path *field.Path, ref *SecretKeyRef) field.ErrorList {
	if ref == nil {
		return nil
	}
	errs := matches(path.Child("name"), ref.Name, secretNamePattern, 253, true, "use the name of a Secret")
	return append(errs, matches(path.Child("key"), ref.Key, secretKeyPattern, 253, true, "use a key of that Secret")...)
}

// matches checks a string by the pattern and length of the CRD.
func matches(path *field.Path, value, pattern string, maxLength int, required bool, advice string) field.ErrorList {
	switch {
	case value == "" && required:
		return field.ErrorList{field.Required(path, advice)}
	case value == "":
		return nil
	case utf8.RuneCountInString(value) > maxLength:
		return field.ErrorList{field.TooLong(path, value, maxLength)}
	case !regexp.MustCompile(pattern).MatchString(value):
		return field.ErrorList{invalid(path, value, advice)}
	}
	return nil
}

// invalid is field.Invalid with no more of the value than a person wants to read.
func invalid(path *field.Path, value, advice string) *field.Error {
	return field.Invalid(path, shown(value), advice)
}

// member is the path of a member of a map.
func member(path *field.Path, name string) *field.Path { return path.Key(shown(name)) }

func shown(value string) string {
	const most = 80
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

// oneOf checks an enumerated string; empty means left out.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, T(shown(string(value))), allowed)}
}

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
			errs = append(errs, field.TooLong(path.Index(i), p, maxLength))
		case problem != "":
			errs = append(errs, invalid(path.Index(i), p, problem))
		}
	}
	return errs
}
