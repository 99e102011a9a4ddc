// Package gitauth makes the credentials for a git remote out of what a GatewaySync names.
package gitauth

import (
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// ProposalField is the field of the credentials for proposals.
const ProposalField = "spec.bidirectional.auth"

// Secrets reads the secrets that a spec names.
type Secrets interface {
	// Read returns the value of ref, the secret named at field, without trailing white space. The error says what to do.
	Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error)
}

// Credentials are the credentials of one field of a spec, with the fields of their secrets.
type Credentials struct {
	v1alpha1.ProposalAuth
	Field                       string // for errors
	app, key, knownHosts, token secretrefs.Field
}

// ForGit returns the credentials of spec.git.auth, which may be nil.
func ForGit(a *v1alpha1.GitAuth) Credentials {
	c := Credentials{
		Field: "git.auth",
		app:   secretrefs.GitHubApp, key: secretrefs.GitSSHKey, knownHosts: secretrefs.GitKnownHosts, token: secretrefs.GitToken,
	}
	if a != nil {
		c.ProposalAuth = v1alpha1.ProposalAuth{SSHKey: a.SSHKey, Token: a.Token, GitHubApp: a.GitHubApp}
	}
	return c
}

// ForProposals returns the credentials of spec.bidirectional.auth.
func ForProposals(a *v1alpha1.ProposalAuth) Credentials {
	return Credentials{
		ProposalAuth: *a,
		Field:        ProposalField,
		app:          secretrefs.ProposalApp, key: secretrefs.ProposalSSHKey, knownHosts: secretrefs.ProposalKnownHosts, token: secretrefs.ProposalToken,
	}
}

// Auth returns the credentials for a remote, which reads the secrets for every use. ca names a CA bundle to trust, too; nil for none.
func (c Credentials) Auth(ca *v1alpha1.SecretKeyRef, secrets Secrets) repo.Auth {
	auth := repo.Auth{Field: c.Field, CA: Plain(secretrefs.GitCA, ca, secrets)}
	if t := c.Token; t != nil {
		auth.Username = t.User()
		auth.Token = Secret(c.token, t.SecretRef, secrets)
	}
	if k := c.SSHKey; k != nil {
		auth.Key = Secret(c.key, k.SecretRef, secrets)
		auth.InsecureIgnoreHostKey = k.InsecureIgnoreHostKey
		if k.KnownHosts != nil {
			auth.KnownHosts = Plain(c.knownHosts, &k.KnownHosts.SecretRef, secrets)
		}
	}
	if a := c.GitHubApp; a != nil {
		auth.App = &repo.GitHubApp{
			AppID: a.AppID, InstallationID: a.InstallationID, APIBaseURL: a.APIBaseURL,
			Key: Secret(c.app, a.PrivateKeySecretRef, secrets),
		}
	}
	return auth
}

// CheckPush returns an error if the credentials cannot push to this kind of address.
func (c Credentials) CheckPush(u repo.URL) error {
	switch {
	case u.Local():
		return nil // the remote refuses pushes
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
