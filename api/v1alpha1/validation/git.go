package validation

import (
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

func validateGit(path *field.Path, git *v1alpha1.GitSpec) field.ErrorList {
	errs := validateRepo(path.Child("repo"), git.Repo)
	if git.Ref == "" {
		errs = append(errs, field.Required(path.Child("ref"), "name a branch, a tag, or a commit"))
	} else if problem := syntax.SpecRefProblem(git.Ref); problem != "" {
		errs = append(errs, fielderr.Invalid(path.Child("ref"), git.Ref, problem+"; name a branch, a tag, or a commit"))
	}
	errs = append(errs, validatePatterns(path.Child("allowedRefs"), git.AllowedRefs, 64, syntax.MaxRef, PatternProblem)...)
	errs = append(errs, validateSecret(path.Child("caSecretRef"), git.CASecretRef)...)
	errs = append(errs, validateVerify(path.Child("verify"), git.Verify)...)
	if git.Auth != nil && git.Auth.SSHKey != nil && git.Auth.Token != nil {
		errs = append(errs, field.Forbidden(path.Child("auth"), "at most one of sshKey, token and githubApp: remove the others"))
	}
	if syntax.IsRegistry(git.Repo) {
		if git.Verify != nil && git.Verify.Mode == v1alpha1.VerifyTag {
			errs = append(errs, field.Forbidden(path.Child("verify"), "git.repo is a registry, whose tags have no signatures: use the mode Head"))
		}
		if a := git.Auth; a != nil && (a.SSHKey != nil || a.GitHubApp != nil) {
			errs = append(errs, field.Forbidden(path.Child("auth"), "git.repo is a registry, which takes only token"))
		}
	}
	return append(errs, validateCredential(path.Child("auth"), git.Auth)...)
}

func validateVerify(path *field.Path, v *v1alpha1.GitVerify) field.ErrorList {
	if v == nil {
		return nil
	}
	errs := fielderr.OneOf(path.Child("mode"), v.Mode, v1alpha1.VerifyHead, v1alpha1.VerifyTag)
	if (v.KeysSecretRef == nil) == (v.KeysConfigMapRef == nil) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "name the keys in one of keysSecretRef and keysConfigMapRef"))
	}
	errs = append(errs, validateSecret(path.Child("keysSecretRef"), v.KeysSecretRef)...)
	errs = append(errs, validateSecret(path.Child("keysConfigMapRef"), v.KeysConfigMapRef)...)
	if len(v.Formats) > 2 {
		return append(errs, field.TooMany(path.Child("formats"), len(v.Formats), 2))
	}
	for i, f := range v.Formats {
		at := path.Child("formats").Index(i)
		if f == "" {
			errs = append(errs, field.NotSupported(at, f, []v1alpha1.SigningFormat{v1alpha1.SigningSSH, v1alpha1.SigningOpenPGP}))
		}
		errs = append(errs, fielderr.OneOf(at, f, v1alpha1.SigningSSH, v1alpha1.SigningOpenPGP)...)
		if slices.Contains(v.Formats[:i], f) {
			errs = append(errs, field.Duplicate(at, f))
		}
	}
	return errs
}

func validateRepo(path *field.Path, repo string) field.ErrorList {
	switch {
	case repo == "":
		return field.ErrorList{field.Required(path, "name the URL of the repository")}
	case utf8.RuneCountInString(repo) > maxURL:
		return field.ErrorList{field.TooLongCharacters(path, "", maxURL)}
	case !repoRegexp.MatchString(repo):
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "is not a URL that Stoker reads; use https://host/path, ssh://host/path, user@host:path, oci://host/path, http://, file:///path or an absolute path")}
	}
	return nil
}

// validateCredential checks what an agent presents to a git host. c may be nil.
func validateCredential(path *field.Path, c *v1alpha1.Credential) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if key := c.SSHKey; key != nil {
		errs = append(errs, validateSecret(path.Child("sshKey", "secretRef"), &key.SecretRef)...)
		if key.KnownHosts != nil {
			errs = append(errs, validateSecret(path.Child("sshKey", "knownHosts", "secretRef"), &key.KnownHosts.SecretRef)...)
		}
	}
	if token := c.Token; token != nil {
		errs = append(errs, validateSecret(path.Child("token", "secretRef"), &token.SecretRef)...)
		errs = append(errs, optional(path.Child("token", "username"), token.Username, usernamePattern, 255, "use a user name without ':'")...)
	}
	if c.GitHubApp != nil {
		errs = append(errs, validateApp(path.Child("githubApp"), c.GitHubApp)...)
		if c.SSHKey != nil || c.Token != nil {
			errs = append(errs, field.Forbidden(path, "githubApp goes alone: remove sshKey and token"))
		}
	}
	return errs
}

func validateApp(path *field.Path, app *v1alpha1.GitHubAppAuth) field.ErrorList {
	errs := validateSecret(path.Child("privateKeySecretRef"), &app.PrivateKeySecretRef)
	if app.AppID < 1 {
		errs = append(errs, field.Invalid(path.Child("appId"), app.AppID, "use the number that GitHub shows for the app"))
	}
	if app.InstallationID < 1 {
		errs = append(errs, field.Invalid(path.Child("installationId"), app.InstallationID, "use the number that GitHub shows for the installation"))
	}
	return append(errs, validateAPIURL(path.Child("apiBaseURL"), app.APIBaseURL)...)
}

// validateAPIURL checks the base URL of a forge's API. No error contains the URL, because it may have a password.
func validateAPIURL(path *field.Path, value string) field.ErrorList {
	errs := optional(path, value, apiURLPattern, maxURL, "use https://host/path of the API")
	for _, e := range errs {
		e.BadValue = field.OmitValueType{}
	}
	return errs
}
