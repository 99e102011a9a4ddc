// Package connect creates the git remote and the gateway client of a sync from a GatewaySync and its secret files. It
// does not connect.
package connect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// New creates both connections. An empty gatewayURL means no gateway, only files.
func New(spec *v1alpha1.GatewaySyncSpec, gatewayURL string, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) (sync.Connections, error) {
	remote, err := Git(spec.Git, secrets, o)
	if err != nil {
		return sync.Connections{}, err
	}
	p := sync.Connections{Remote: remote}
	if gatewayURL == "" {
		return p, nil
	}
	cfg := ignition.Config{URL: gatewayURL, Log: log}
	if ref := spec.Gateway.APIKey(); ref != nil {
		p.Token = true
		cfg.Key = func() (secret.String, error) {
			v, err := secrets.Read(GatewayAPI, *ref)
			if err != nil {
				return v, failure.New(v1alpha1.ReasonGatewayForbidden, "the API token of spec.gateway.api: %w", err)
			}
			return v, nil
		}
	}
	if t := spec.Gateway.TLSConfig; t != nil {
		cfg.TLS.ServerName, cfg.TLS.InsecureSkipVerify = t.ServerName, t.InsecureSkipVerify
		cfg.TLS.CA = public(GatewayCA, t.CASecretRef, secrets)
	}
	client, err := ignition.New(cfg)
	if err != nil {
		return sync.Connections{}, errors.Join(err, remote.Close())
	}
	p.Gateway = client
	return p, nil
}

// Git creates the git remote. The caller must Close it.
func Git(git v1alpha1.GitSpec, secrets Secrets, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return nil, err
	}
	auth := repo.Auth{CA: public(GitCA, git.CASecretRef, secrets)}
	if a := git.Auth; a != nil {
		switch {
		case a.Token != nil:
			auth.Username = a.Token.User()
			auth.Token = credential(GitToken, a.Token.SecretRef, secrets)
		case a.SSHKey != nil:
			auth.Key = credential(GitSSHKey, a.SSHKey.SecretRef, secrets)
			auth.InsecureIgnoreHostKey = a.SSHKey.InsecureIgnoreHostKey
			if known := a.SSHKey.KnownHosts; known != nil {
				auth.KnownHosts = public(GitKnownHosts, &known.SecretRef, secrets)
			}
		case a.GitHubApp != nil:
			auth.App = &repo.GitHubApp{
				AppID: a.GitHubApp.AppID, InstallationID: a.GitHubApp.InstallationID, APIBaseURL: a.GitHubApp.APIBaseURL,
				Key: credential(GitHubApp, a.GitHubApp.PrivateKeySecretRef, secrets),
			}
		}
	}
	return repo.NewRemote(u, auth, o)
}

// named returns the secrets that spec names.
func named(spec *v1alpha1.GatewaySyncSpec) map[Field]v1alpha1.SecretKeyRef {
	refs := map[Field]v1alpha1.SecretKeyRef{}
	add := func(field Field, ref *v1alpha1.SecretKeyRef) {
		if ref != nil {
			refs[field] = *ref
		}
	}
	add(GitCA, spec.Git.CASecretRef)
	if a := spec.Git.Auth; a != nil {
		switch {
		case a.Token != nil:
			add(GitToken, &a.Token.SecretRef)
		case a.SSHKey != nil:
			add(GitSSHKey, &a.SSHKey.SecretRef)
			if a.SSHKey.KnownHosts != nil {
				add(GitKnownHosts, &a.SSHKey.KnownHosts.SecretRef)
			}
		case a.GitHubApp != nil:
			add(GitHubApp, &a.GitHubApp.PrivateKeySecretRef)
		}
	}
	add(GatewayAPI, spec.Gateway.APIKey())
	if t := spec.Gateway.TLSConfig; t != nil {
		add(GatewayCA, t.CASecretRef)
	}
	return refs
}

// Reachable returns PodRestartNeeded with the reasons why secrets that spec names can never be read here, or nil. An
// agent that cannot read them neither syncs nor leads.
func Reachable(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) error {
	refs := named(spec)
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(refs)) {
		errs = append(errs, secrets.Reachable(field, refs[field]))
	}
	return errors.Join(errs...)
}

// Fingerprint changes when a secret that spec names changes, or fails with another error.
func Fingerprint(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) [sha256.Size]byte {
	refs := named(spec)
	h := sha256.New()
	for _, field := range slices.Sorted(maps.Keys(refs)) {
		v, err := secrets.Read(field, refs[field])
		fmt.Fprintf(h, "%s\n%q\n%v\n", field, v.Reveal(), err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// RepoName returns the repository's URL without credentials.
func RepoName(git v1alpha1.GitSpec) string {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return "(invalid)"
	}
	return u.String()
}

// credential reads a secret on each use, so that a rotated secret takes effect immediately.
func credential(field Field, ref v1alpha1.SecretKeyRef, secrets Secrets) func() (secret.String, error) {
	return func() (secret.String, error) { return secrets.Read(field, ref) }
}

// public reads a value that is not secret itself, such as a CA bundle or known hosts, on each use. It returns nil if
// spec has none.
func public(field Field, ref *v1alpha1.SecretKeyRef, secrets Secrets) func() ([]byte, error) {
	if ref == nil {
		return nil
	}
	return func() ([]byte, error) {
		v, err := secrets.Read(field, *ref)
		if err != nil {
			return nil, err
		}
		return []byte(v.Reveal()), nil
	}
}
