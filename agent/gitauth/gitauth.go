// Package gitauth makes the credentials for a git remote out of what a GatewaySync or a ConfigSync names.
package gitauth

import (
	"strconv"
	"strings"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Secrets reads the secrets that a spec names.
type Secrets interface {
	// Read returns the value of ref, the secret named at field, without trailing white space. The error says what to do.
	Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error)
}

// Credential is a credential of a spec.
type Credential struct {
	v1alpha1.Credential
	Field string           // of the spec, for errors
	in    secretrefs.Field // of the spec, for Secrets
}

// ForGit returns a, which is spec.git.auth and may be nil, as a Credential.
func ForGit(a *v1alpha1.Credential) Credential {
	c := Credential{Field: "git.auth", in: secretrefs.GitAuth}
	if a != nil {
		c.Credential = *a
	}
	return c
}

// ForProposals returns a, which is spec.bidirectional.auth and not nil, as a Credential.
func ForProposals(a *v1alpha1.Credential) Credential {
	return Credential{*a, string(secretrefs.ProposalAuth), secretrefs.ProposalAuth}
}

// Auth returns the credentials for a remote, which reads the secrets for every use. ca names a CA bundle to trust, too; nil for none.
func (c Credential) Auth(ca *v1alpha1.SecretKeyRef, secrets Secrets) repo.Auth {
	auth := repo.Auth{Field: c.Field, CA: Plain(secretrefs.GitCA, ca, secrets)}
	if t := c.Token; t != nil {
		auth.Username = t.User()
		auth.Token = Secret(c.in+secretrefs.Token, t.SecretRef, secrets)
	}
	if k := c.SSHKey; k != nil {
		auth.Key = Secret(c.in+secretrefs.SSHKey, k.SecretRef, secrets)
		auth.InsecureIgnoreHostKey = k.InsecureIgnoreHostKey
		if k.KnownHosts != nil {
			auth.KnownHosts = Plain(c.in+secretrefs.KnownHosts, &k.KnownHosts.SecretRef, secrets)
		}
	}
	if a := c.GitHubApp; a != nil {
		auth.App = &repo.GitHubApp{
			AppID: a.AppID, InstallationID: a.InstallationID, APIBaseURL: a.APIBaseURL,
			Key: Secret(c.in+secretrefs.GitHubApp, a.PrivateKeySecretRef, secrets),
		}
	}
	return auth
}

// CheckPush returns an error if the credentials cannot push to this kind of address.
func (c Credential) CheckPush(u repo.URL) error {
	switch {
	case u.Local():
		return nil // the remote refuses pushes
	case u.Registry():
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "git.repo is a registry, and proposals need git: disable bidirectional sync, or use a git repository")
	case u.SSH() && c.SSHKey == nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"git.repo is an ssh address, where a push needs an ssh key: set spec.bidirectional.auth.sshKey, or set git.repo to the https:// address")
	case !u.SSH() && c.SSHKey != nil && c.Token == nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s.sshKey works only with an ssh address: set spec.bidirectional.auth.token, or set git.repo to the ssh:// address", c.Field)
	}
	return nil
}

// Secret returns a function that reads the secret ref, which is named at field.
func Secret(field secretrefs.Field, ref v1alpha1.SecretKeyRef, secrets Secrets) func() (secret.String, error) {
	return func() (secret.String, error) { return secrets.Read(field, ref) }
}

// Plain is Secret for a value that is not secret, such as a CA bundle. It returns nil if ref is nil.
func Plain(field secretrefs.Field, ref *v1alpha1.SecretKeyRef, secrets Secrets) func() ([]byte, error) {
	if ref == nil {
		return nil
	}
	return func() ([]byte, error) {
		v, err := secrets.Read(field, *ref)
		return []byte(v.Reveal()), err
	}
}

// configField is the field of a ConfigSync that names the Secret with its credential.
const configField = "spec.source.git.authSecretRef"

// Keys of the Secret of a ConfigSync. If Kubernetes has a type of Secret for a credential, the keys are those of the type.
const (
	keySSH          = "ssh-privatekey"
	keyKnownHosts   = "known_hosts"
	keyUsername     = "username"
	keyPassword     = "password"
	keyToken        = "token"
	keyCA           = "ca.crt"
	keyApp          = "appId"
	keyInstallation = "installationId"
	keyAppKey       = "privateKey"
	keyAPI          = "apiBaseURL"
)

// ForConfigSync returns the credentials for the remote of a ConfigSync: authMethod says which keys of its Secret count. The error names a key
// that is missing or wrong, and shows no value.
func ForConfigSync(method v1alpha1.ConfigAuthMethod, s ConfigSecret) (repo.Auth, error) {
	c := Credential{Field: configField}
	switch method {
	case v1alpha1.ConfigAuthSSH:
		c.SSHKey = &v1alpha1.SSHKeyAuth{SecretRef: s.ref(keySSH)}
		if s.has(keyKnownHosts) {
			c.SSHKey.KnownHosts = &v1alpha1.SecretSource{SecretRef: s.ref(keyKnownHosts)}
		}
	case v1alpha1.ConfigAuthHTTPS:
		c.Token = &v1alpha1.TokenAuth{SecretRef: s.ref(keyPassword), Username: s.value(keyUsername)}
		if s.has(keyToken) {
			c.Token.SecretRef = s.ref(keyToken)
		}
	case v1alpha1.ConfigAuthGitHubApp:
		c.GitHubApp = &v1alpha1.GitHubAppAuth{PrivateKeySecretRef: s.ref(keyAppKey), APIBaseURL: s.value(keyAPI)}
		var err error
		if c.GitHubApp.AppID, err = s.positiveNumber(keyApp); err != nil {
			return repo.Auth{}, err
		}
		if c.GitHubApp.InstallationID, err = s.positiveNumber(keyInstallation); err != nil {
			return repo.Auth{}, err
		}
	}
	for field, ref := range secretrefs.ForCredential(configField, &c.Credential) {
		if _, err := s.Read(field, ref); err != nil {
			return repo.Auth{}, err
		}
	}
	var ca *v1alpha1.SecretKeyRef
	if s.has(keyCA) {
		ca = new(s.ref(keyCA))
	}
	return c.Auth(ca, s), nil
}

// ConfigSecret is the Secret of a ConfigSync. It implements Secrets.
type ConfigSecret struct {
	Name string
	Data map[string][]byte
}

// Read returns the value of a key of the Secret, or an error if it is missing or empty.
func (s ConfigSecret) Read(_ secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	if !s.has(ref.Key) {
		return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed, "%s: Secret %s has no key %s", configField, s.Name, ref.Key)
	}
	return secret.New(s.value(ref.Key)), nil
}

func (s ConfigSecret) ref(key string) v1alpha1.SecretKeyRef {
	return v1alpha1.SecretKeyRef{Name: s.Name, Key: key}
}

func (s ConfigSecret) has(key string) bool { return s.value(key) != "" }

// value returns the value of a key without trailing white space; "" if it is missing.
func (s ConfigSecret) value(key string) string {
	return strings.TrimRight(string(s.Data[key]), " \t\r\n")
}

// positiveNumber returns the value of a key that must be a positive number. The error does not quote it.
func (s ConfigSecret) positiveNumber(key string) (int64, error) {
	n, err := strconv.ParseInt(s.value(key), 10, 64)
	if err != nil || n < 1 {
		return 0, failure.New(v1alpha1.ReasonAuthFailed, "%s: key %s of Secret %s is missing or not a positive number", configField, key, s.Name)
	}
	return n, nil
}
