// Package connect creates the git remotes and the clients of a GatewaySync from its spec and its secret files.
package connect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"log/slog"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/gitauth"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Gateway is the gateway of an agent.
type Gateway struct {
	URL string      // "" means no gateway, only files
	Key *apikey.Key // for spec.gateway.api.managed; nil if this agent can make none
}

// New creates the connections of a sync, except Storage: see package storage. The caller must close the Remote.
func New(spec *v1alpha1.GatewaySyncSpec, gateway Gateway, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) (sync.Connections, error) {
	remote, err := Git(spec.Git, secrets, o)
	if err != nil {
		return sync.Connections{}, err
	}
	c := sync.Connections{Remote: remote, Webhook: validation(spec.Validation, secrets), Verifier: Verifier(spec.Git.Verify, secrets)}
	if gateway.URL == "" {
		return c, nil
	}
	cfg := ignition.Config{URL: gateway.URL, Log: log}
	if spec.Gateway.ManagedKey() {
		if gateway.Key == nil {
			err := failure.New(v1alpha1.ReasonPodRestartNeeded, "spec.gateway.api.managed: the agent has no place for the API key: restart the pod, if it is older than the setting; a standalone dry run makes no key: leave out --gateway-url")
			return sync.Connections{}, errors.Join(err, remote.Close())
		}
		c.HasAPIToken, cfg.Key, cfg.Rejected = true, gateway.Key.Read, gateway.Key.Rejected
	}
	if ref := spec.Gateway.APIKey(); ref != nil {
		c.HasAPIToken = true
		cfg.Key = func() (secret.String, error) {
			v, err := secrets.Read(secretrefs.GatewayAPI, *ref)
			if err != nil {
				return v, failure.New(v1alpha1.ReasonGatewayForbidden, "the API key of spec.gateway.api: %w", err)
			}
			return v, nil
		}
	}
	if t := spec.Gateway.TLSConfig; t != nil {
		cfg.TLS.ServerName, cfg.TLS.InsecureSkipVerify = t.ServerName, t.InsecureSkipVerify
		cfg.TLS.CA = gitauth.Plain(secretrefs.GatewayCA, t.CASecretRef, secrets)
	}
	client, err := ignition.New(cfg)
	if err != nil {
		return sync.Connections{}, errors.Join(err, remote.Close())
	}
	c.Gateway = client
	return c, nil
}

// Verifier returns the verifier of commit signatures, or nil if v is nil.
func Verifier(v *v1alpha1.GitVerify, secrets Secrets) *repo.Verifier {
	if v == nil {
		return nil
	}
	field, ref := secretrefs.GitKeys, v.KeysSecretRef
	if ref == nil {
		field, ref = secretrefs.GitKeysConfigMap, v.KeysConfigMapRef
	}
	keys := gitauth.Plain(field, ref, secrets)
	if keys == nil { // validation rejects such a spec, but it must not admit every commit
		keys = func() ([]byte, error) { return nil, errors.New("neither keysSecretRef nor keysConfigMapRef is set") }
	}
	return repo.NewVerifier(*v, string(field), keys)
}

// validation returns the validation webhook, or nil if the spec names none.
func validation(v *v1alpha1.ValidationSpec, secrets Secrets) *review.Webhook {
	if v == nil || v.Webhook == nil {
		return nil
	}
	w := &review.Webhook{
		URL: v.Webhook.URL, Client: httpclient.Client{Timeout: effective.ValidationTimeout(v.Webhook)}, IgnoreFailure: v.Webhook.FailurePolicy == v1alpha1.FailurePolicyIgnore,
		CA: gitauth.Plain(secretrefs.ValidationCA, v.Webhook.CASecretRef, secrets),
	}
	if ref := v.Webhook.SecretRef; ref != nil {
		w.Key = gitauth.Secret(secretrefs.Validation, *ref, secrets)
	}
	return w
}

// Git creates the git remote. The caller must Close it.
func Git(git v1alpha1.GitSpec, secrets Secrets, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return nil, err
	}
	return repo.NewRemote(u, gitauth.ForGit(git.Auth).Auth(git.CASecretRef, secrets), o)
}

// Reachable returns an error with the reason PodRestartNeeded if this process can never read a secret that a sync needs. An
// agent that cannot read them does not sync, and leads only if no other agent can. The secrets of proposals and of storage do not count.
func Reachable(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) error {
	return checkReadable(secretrefs.ForSync(spec), secrets)
}

func checkReadable(named iter.Seq2[secretrefs.Field, v1alpha1.SecretKeyRef], secrets Secrets) error {
	var errs []error
	for field, ref := range named {
		errs = append(errs, secrets.Reachable(field, ref))
	}
	return errors.Join(errs...)
}

// Fingerprint returns a hash that changes when a secret that spec names changes, or its read fails with another error. The
// secrets of proposals and of storage count.
func Fingerprint(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) [sha256.Size]byte {
	h := sha256.New()
	for _, named := range allSecrets(spec) {
		for field, ref := range named {
			v, err := secrets.Read(field, ref)
			fmt.Fprintf(h, "%s\n%q\n%v\n", field, v.Reveal(), err)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// allSecrets returns the secrets that a sync needs, those of proposals, and those of the storage of snapshots.
func allSecrets(spec *v1alpha1.GatewaySyncSpec) []iter.Seq2[secretrefs.Field, v1alpha1.SecretKeyRef] {
	return []iter.Seq2[secretrefs.Field, v1alpha1.SecretKeyRef]{secretrefs.ForSync(spec), secretrefs.ForProposals(spec), secretrefs.ForStorage(spec)}
}

// RepoName returns the repository's URL without credentials, or "(invalid)".
func RepoName(git v1alpha1.GitSpec) string {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return "(invalid)"
	}
	return u.String()
}
