package source

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/gitauth"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// SecretReader returns the data of a Secret of the ConfigSync's namespace.
type SecretReader func(ctx context.Context, name string) (map[string][]byte, error)

// authField is the field of the credentials, for errors.
const authField = "spec.source.git.authSecretRef"

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

// GitRemote returns the remote of a ConfigSync that names a repository.
func GitRemote(ctx context.Context, git *v1alpha1.ConfigGit, read SecretReader, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.RepoURL)
	if err != nil {
		return nil, err
	}
	if u.Local() {
		return nil, errLocalRepository()
	}
	auth := repo.Auth{Field: authField}
	if git.AuthSecretRef != nil {
		data, err := read(ctx, git.AuthSecretRef.Name)
		if err != nil {
			return nil, err
		}
		if auth, err = credentials(git.AuthMethod, secretKeys{git.AuthSecretRef.Name, data}); err != nil {
			return nil, err
		}
	}
	return repo.NewRemote(u, auth, o)
}

func errLocalRepository() error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "the repository is a directory, which a ConfigSync does not read: use a git server")
}

// secretKeys are the contents of a Secret.
type secretKeys struct {
	name string
	data map[string][]byte
}

// value returns the value of a key without trailing white space, or false if it is missing or empty.
func (k secretKeys) value(key string) (secret.String, bool) {
	v := strings.TrimRight(string(k.data[key]), " \t\r\n")
	return secret.New(v), v != ""
}

// required returns a function that returns the value of a key, as repo.Auth takes it, or an error if the key is missing.
func (k secretKeys) required(key string) (func() (secret.String, error), error) {
	v, ok := k.value(key)
	if !ok {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "%s: Secret %s has no key %s", authField, k.name, key)
	}
	return func() (secret.String, error) { return v, nil }, nil
}

// positiveNumber returns the value of a key that must be a positive number. The error does not quote it.
func (k secretKeys) positiveNumber(key string) (int64, error) {
	v, _ := k.value(key)
	n, err := strconv.ParseInt(v.Reveal(), 10, 64)
	if err != nil || n < 1 {
		return 0, failure.New(v1alpha1.ReasonAuthFailed, "%s: key %s of Secret %s is missing or not a positive number", authField, key, k.name)
	}
	return n, nil
}

func credentials(method v1alpha1.ConfigAuthMethod, k secretKeys) (auth repo.Auth, err error) {
	auth.Field = authField
	if ca, ok := k.value(keyCA); ok {
		auth.CA = func() ([]byte, error) { return []byte(ca.Reveal()), nil }
	}
	switch method {
	case v1alpha1.ConfigAuthSSH:
		if hosts, ok := k.value(keyKnownHosts); ok {
			auth.KnownHosts = func() ([]byte, error) { return []byte(hosts.Reveal()), nil }
		}
		auth.Key, err = k.required(keySSH)
	case v1alpha1.ConfigAuthHTTPS:
		user, _ := k.value(keyUsername)
		auth.Username = user.Reveal()
		if _, ok := k.value(keyToken); ok {
			auth.Token, err = k.required(keyToken)
		} else {
			auth.Token, err = k.required(keyPassword)
		}
	case v1alpha1.ConfigAuthGitHubApp:
		app := &repo.GitHubApp{}
		if app.AppID, err = k.positiveNumber(keyApp); err != nil {
			return auth, err
		}
		if app.InstallationID, err = k.positiveNumber(keyInstallation); err != nil {
			return auth, err
		}
		api, _ := k.value(keyAPI)
		app.APIBaseURL = api.Reveal()
		app.Key, err = k.required(keyAppKey)
		auth.App = app
	}
	return auth, err
}

// GatewaySyncRemote returns the remote of a GatewaySync. It reads the Secrets of git when the remote needs them.
func GatewaySyncRemote(ctx context.Context, git *v1alpha1.GitSpec, read SecretReader, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return nil, err
	}
	if u.Local() {
		return nil, errLocalRepository()
	}
	auth := gitauth.ForGit(git.Auth)
	auth.Field = "spec.git.auth of the GatewaySync"
	return repo.NewRemote(u, auth.Auth(git.CASecretRef, apiSecrets(func(name string) (map[string][]byte, error) { return read(ctx, name) })), o)
}

// apiSecrets returns the data of a Secret. It implements gitauth.Secrets.
type apiSecrets func(name string) (map[string][]byte, error)

func (s apiSecrets) Read(_ secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	data, err := s(ref.Name)
	if err != nil {
		return secret.String{}, err
	}
	v, ok := secretKeys{ref.Name, data}.value(ref.Key)
	if !ok {
		return v, failure.New(v1alpha1.ReasonAuthFailed, "Secret %s has no key %s", ref.Name, ref.Key)
	}
	return v, nil
}

// CloneRemote returns the remote of the local clone that contains a directory, and the path of the directory in it.
func CloneRemote(dir string, o repo.RemoteOptions) (*repo.Remote, string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, "", err
	}
	for root := abs; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, ".git")); err == nil {
			u, err := repo.ParseURL(root)
			if err != nil {
				return nil, "", err
			}
			inside, err := filepath.Rel(root, abs)
			if err != nil {
				return nil, "", err
			}
			remote, err := repo.NewRemote(u, repo.Auth{}, o)
			return remote, filepath.ToSlash(inside), err
		}
		if root == filepath.Dir(root) {
			return nil, "", failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is not in a clone of a git repository", cmp.Or(dir, "."))
		}
	}
}
