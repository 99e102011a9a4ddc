package standalone

import (
	"log/slog"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// connect makes the two ends of a sync from a spec. Nothing is dialled yet.
func connect(gs *v1alpha1.GatewaySync, gatewayURL string, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) (sync.Peers, error) {
	remote, err := connectGit(gs.Spec.Git, secrets, o)
	if err != nil {
		return sync.Peers{}, err
	}
	p := sync.Peers{Remote: remote}
	if gatewayURL == "" {
		return p, nil
	}
	cfg := ignition.Config{URL: gatewayURL, Log: log}
	if ref := gs.Spec.Gateway.APIKey(); ref != nil {
		p.Token = true
		cfg.Key = func() (secret.String, error) {
			v, err := secrets.Read(ref.Name, ref.Key)
			if err != nil {
				return v, failure.New(v1alpha1.ReasonGatewayForbidden, "the API token of spec.gateway.api: %w", err)
			}
			return v, nil
		}
	}
	if t := gs.Spec.Gateway.TLSConfig; t != nil {
		cfg.TLS.ServerName, cfg.TLS.InsecureSkipVerify = t.ServerName, t.InsecureSkipVerify
		cfg.TLS.CA = public(t.CASecretRef, secrets)
	}
	client, err := ignition.New(cfg)
	if err != nil {
		return sync.Peers{}, err
	}
	p.Gateway = client
	return p, nil
}

func connectGit(git v1alpha1.GitSpec, secrets Secrets, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return nil, err
	}
	auth := repo.Auth{CA: public(git.CASecretRef, secrets)}
	if a := git.Auth; a != nil {
		switch {
		case a.Token != nil:
			auth.Username = a.Token.User()
			auth.Token = credential(a.Token.SecretRef, secrets)
		case a.SSHKey != nil:
			auth.Key = credential(a.SSHKey.SecretRef, secrets)
			auth.InsecureIgnoreHostKey = a.SSHKey.InsecureIgnoreHostKey
			if known := a.SSHKey.KnownHosts; known != nil {
				auth.KnownHosts = public(&known.SecretRef, secrets)
			}
		case a.GitHubApp != nil:
			auth.App = &repo.GitHubApp{
				AppID: a.GitHubApp.AppID, InstallationID: a.GitHubApp.InstallationID, APIBaseURL: a.GitHubApp.APIBaseURL,
				Key: credential(a.GitHubApp.PrivateKeySecretRef, secrets),
			}
		}
	}
	return repo.NewRemote(u, auth, o)
}

// credential reads a secret on use, so that a rotated one counts at once.
func credential(ref v1alpha1.SecretKeyRef, secrets Secrets) func() (secret.String, error) {
	return func() (secret.String, error) { return secrets.Read(ref.Name, ref.Key) }
}

// public reads what is no secret itself, a CA bundle or known hosts, on use; nil where the spec names none.
func public(ref *v1alpha1.SecretKeyRef, secrets Secrets) func() ([]byte, error) {
	if ref == nil {
		return nil
	}
	return func() ([]byte, error) {
		v, err := secrets.Read(ref.Name, ref.Key)
		if err != nil {
			return nil, err
		}
		return []byte(v.Reveal()), nil
	}
}
