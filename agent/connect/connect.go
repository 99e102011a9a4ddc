// Package connect creates the git remote and the gateway client of a sync from a GatewaySync and its secret files. It
// does not connect.
package connect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"

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
			v, err := secrets.Read(v1alpha1.SecretGatewayAPI, *ref)
			if err != nil {
				return v, failure.New(v1alpha1.ReasonGatewayForbidden, "the API token of spec.gateway.api: %w", err)
			}
			return v, nil
		}
	}
	if t := spec.Gateway.TLSConfig; t != nil {
		cfg.TLS.ServerName, cfg.TLS.InsecureSkipVerify = t.ServerName, t.InsecureSkipVerify
		cfg.TLS.CA = public(v1alpha1.SecretGatewayCA, t.CASecretRef, secrets)
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
	auth := repo.Auth{CA: public(v1alpha1.SecretGitCA, git.CASecretRef, secrets)}
	if a := git.Auth; a != nil {
		switch {
		case a.Token != nil:
			auth.Username = a.Token.User()
			auth.Token = credential(v1alpha1.SecretGitToken, a.Token.SecretRef, secrets)
		case a.SSHKey != nil:
			auth.Key = credential(v1alpha1.SecretGitSSHKey, a.SSHKey.SecretRef, secrets)
			auth.InsecureIgnoreHostKey = a.SSHKey.InsecureIgnoreHostKey
			if known := a.SSHKey.KnownHosts; known != nil {
				auth.KnownHosts = public(v1alpha1.SecretGitKnownHosts, &known.SecretRef, secrets)
			}
		case a.GitHubApp != nil:
			auth.App = &repo.GitHubApp{
				AppID: a.GitHubApp.AppID, InstallationID: a.GitHubApp.InstallationID, APIBaseURL: a.GitHubApp.APIBaseURL,
				Key: credential(v1alpha1.SecretGitHubApp, a.GitHubApp.PrivateKeySecretRef, secrets),
			}
		}
	}
	return repo.NewRemote(u, auth, o)
}

// Reachable returns PodRestartNeeded with the reasons why secrets that spec names can never be read here, or nil. An
// agent that cannot read them neither syncs nor leads.
func Reachable(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) error {
	var errs []error
	for field, ref := range spec.Secrets() {
		errs = append(errs, secrets.Reachable(field, ref))
	}
	return errors.Join(errs...)
}

// Fingerprint changes when a secret that spec names changes, or fails with another error.
func Fingerprint(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) [sha256.Size]byte {
	h := sha256.New()
	for field, ref := range spec.Secrets() {
		v, err := secrets.Read(field, ref)
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
func credential(field v1alpha1.SecretField, ref v1alpha1.SecretKeyRef, secrets Secrets) func() (secret.String, error) {
	return func() (secret.String, error) { return secrets.Read(field, ref) }
}

// public reads a value that is not secret itself, such as a CA bundle or known hosts, on each use. It returns nil if
// spec has none.
func public(field v1alpha1.SecretField, ref *v1alpha1.SecretKeyRef, secrets Secrets) func() ([]byte, error) {
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
