package connect

import (
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
)

// proposalAuth is the field of the credentials for proposals.
const proposalAuth = "spec.bidirectional.auth"

// credentials are the credentials of one field of the spec, with the fields of their secrets.
type credentials struct {
	v1alpha1.ProposalAuth
	field                       string // for errors
	app, key, knownHosts, token secretrefs.Field
}

// gitCredentials returns the credentials of spec.git.auth.
func gitCredentials(a *v1alpha1.GitAuth) credentials {
	c := credentials{
		field: "git.auth",
		app:   secretrefs.GitHubApp, key: secretrefs.GitSSHKey, knownHosts: secretrefs.GitKnownHosts, token: secretrefs.GitToken,
	}
	if a != nil {
		c.ProposalAuth = v1alpha1.ProposalAuth{SSHKey: a.SSHKey, Token: a.Token, GitHubApp: a.GitHubApp}
	}
	return c
}

// proposalCredentials returns the credentials of spec.bidirectional.auth.
func proposalCredentials(a *v1alpha1.ProposalAuth) credentials {
	return credentials{
		ProposalAuth: *a,
		field:        proposalAuth,
		app:          secretrefs.ProposalApp, key: secretrefs.ProposalSSHKey, knownHosts: secretrefs.ProposalKnownHosts, token: secretrefs.ProposalToken,
	}
}

// auth returns the credentials for a remote.
func (c credentials) auth(secrets Secrets) repo.Auth {
	auth := repo.Auth{Field: c.field}
	if t := c.Token; t != nil {
		auth.Username = t.User()
		auth.Token = secretReader(c.token, t.SecretRef, secrets)
	}
	if k := c.SSHKey; k != nil {
		auth.Key = secretReader(c.key, k.SecretRef, secrets)
		auth.InsecureIgnoreHostKey = k.InsecureIgnoreHostKey
		if k.KnownHosts != nil {
			auth.KnownHosts = plainReader(c.knownHosts, &k.KnownHosts.SecretRef, secrets)
		}
	}
	if a := c.GitHubApp; a != nil {
		auth.App = &repo.GitHubApp{
			AppID: a.AppID, InstallationID: a.InstallationID, APIBaseURL: a.APIBaseURL,
			Key: secretReader(c.app, a.PrivateKeySecretRef, secrets),
		}
	}
	return auth
}

// checkPush returns an error if the credentials cannot push to this kind of address.
func (c credentials) checkPush(u repo.URL) error {
	switch {
	case u.Local():
		return nil // the remote refuses pushes
	case u.SSH() && c.SSHKey == nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"git.repo is an ssh address, and a push there needs an ssh key: set spec.bidirectional.auth.sshKey, or write the https:// address into git.repo")
	case !u.SSH() && c.SSHKey != nil && c.Token == nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s.sshKey pushes to an ssh address only: set spec.bidirectional.auth.token, or write the ssh:// address into git.repo", c.field)
	}
	return nil
}
