package connect

import (
	"context"
	"errors"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// proposalPermissions are the permissions that a GitHub App needs to push a branch and to open a pull request.
func proposalPermissions() map[string]string {
	return map[string]string{"contents": "write", "pull_requests": "write"}
}

// Proposals creates the git remote for pushes, and returns a function that returns the token for the forge's API. Both use the
// credentials of b, or those of git if b has none. The caller must Close the remote.
//
// It fails with PodRestartNeeded if the pod does not mount the secrets, and with AuthFailed if the credentials cannot push to
// this kind of address. Remote and function read the secrets on each use. If one cannot be read, that use fails with
// AuthFailed and names the field.
func Proposals(gs *v1alpha1.GatewaySyncSpec, b *v1alpha1.BidirectionalSpec, secrets Secrets, o repo.RemoteOptions) (*repo.Remote, func(context.Context) (secret.String, error), error) {
	u, err := repo.ParseURL(gs.Git.Repo)
	if err != nil {
		return nil, nil, err
	}
	used, c := &v1alpha1.GatewaySyncSpec{Git: gs.Git, Bidirectional: b}, gitCredentials(gs.Git.Auth)
	switch {
	case b.Auth != nil:
		used.Git.Auth, c = nil, proposalCredentials(b.Auth)
	case gs.Git.Auth == nil:
		c.field = proposalAuth // a repository that anyone may read
	}
	if err := errors.Join(reachable(used.Secrets(), secrets), reachable(used.ProposalSecrets(), secrets)); err != nil {
		return nil, nil, err
	}
	if err := c.checkPush(u); err != nil {
		return nil, nil, err
	}
	auth := c.auth(secrets)
	auth.CA = plainReader(v1alpha1.SecretGitCA, gs.Git.CASecretRef, secrets)
	if auth.App != nil {
		auth.App.Permissions = proposalPermissions()
	}
	remote, err := repo.NewRemote(u, auth, o)
	if err != nil {
		return nil, nil, err
	}
	if auth.App == nil && auth.Token == nil && !u.Local() {
		return remote, noAPIToken, nil
	}
	return remote, remote.APIToken, nil
}

// noAPIToken is the token function of credentials without a token.
func noAPIToken(context.Context) (secret.String, error) {
	return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed,
		"the API of the forge needs a token, which an ssh key does not replace: set spec.bidirectional.auth.token (beside spec.bidirectional.auth.sshKey if git.repo is an ssh address), or spec.bidirectional.createPR: false")
}
