package validation

import (
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
)

func validateGit(path *field.Path, git *v1alpha1.GitSpec) field.ErrorList {
	errs := validateRepo(path.Child("repo"), git.Repo)
	if git.Ref == "" {
		errs = append(errs, field.Required(path.Child("ref"), "name a branch, a tag, or a commit"))
	} else if problem := v1alpha1.SpecRefProblem(git.Ref); problem != "" {
		errs = append(errs, fielderr.Invalid(path.Child("ref"), git.Ref, problem+"; name a branch, a tag, or a commit"))
	}
	errs = append(errs, validatePatterns(path.Child("allowedRefs"), git.AllowedRefs, 64, v1alpha1.MaxRef, patternProblem)...)
	errs = append(errs, validateSecret(path.Child("caSecretRef"), git.CASecretRef)...)
	errs = append(errs, validateVerify(path.Child("verify"), git.Verify)...)
	return append(errs, validateAuth(path.Child("auth"), git.Auth)...)
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
		return field.ErrorList{field.Required(path, "give the URL of the repository")}
	case utf8.RuneCountInString(repo) > maxURL:
		return field.ErrorList{field.TooLong(path, nil, maxURL)}
	case !repoRegexp.MatchString(repo):
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "is not a URL that Stoker reads; use https://host/path, ssh://host/path, user@host:path, http://, file:///path or an absolute path")}
	}
	return nil
}

func validateAuth(path *field.Path, auth *v1alpha1.GitAuth) field.ErrorList {
	if auth == nil {
		return nil
	}
	var errs field.ErrorList
	kinds := 0
	if k := auth.SSHKey; k != nil {
		kinds++
		errs = append(errs, validateSSHKey(path.Child("sshKey"), k)...)
	}
	if t := auth.Token; t != nil {
		kinds++
		errs = append(errs, validateToken(path.Child("token"), t)...)
	}
	if app := auth.GitHubApp; app != nil {
		kinds++
		errs = append(errs, validateApp(path.Child("githubApp"), app)...)
	}
	if kinds > 1 {
		errs = append(errs, field.Forbidden(path, "at most one of sshKey, token and githubApp: remove the others"))
	}
	return errs
}

func validateSSHKey(path *field.Path, k *v1alpha1.SSHKeyAuth) field.ErrorList {
	errs := validateSecret(path.Child("secretRef"), &k.SecretRef)
	if k.KnownHosts != nil {
		errs = append(errs, validateSecret(path.Child("knownHosts", "secretRef"), &k.KnownHosts.SecretRef)...)
	}
	return errs
}

func validateToken(path *field.Path, t *v1alpha1.TokenAuth) field.ErrorList {
	errs := validateSecret(path.Child("secretRef"), &t.SecretRef)
	return append(errs, matches(path.Child("username"), t.Username, usernamePattern, 255, false, "use a user name without ':'")...)
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

// validateAPIURL checks the base URL of a forge's API. No error holds it, because it may contain a password.
func validateAPIURL(path *field.Path, value string) field.ErrorList {
	errs := matches(path, value, apiURLPattern, maxURL, false, "use https://host/path of the API")
	for _, e := range errs {
		e.BadValue = field.OmitValueType{}
	}
	return errs
}
