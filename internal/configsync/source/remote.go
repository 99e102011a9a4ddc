package source

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
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

// GitRemote returns the remote of a ConfigSync that names a repository.
func GitRemote(ctx context.Context, git *v1alpha1.ConfigGit, read SecretReader, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.RepoURL)
	if err != nil {
		return nil, err
	}
	if err := checkServer(u); err != nil {
		return nil, err
	}
	var s gitauth.ConfigSecret
	if git.AuthSecretRef != nil {
		s.Name = git.AuthSecretRef.Name
		if s.Data, err = read(ctx, s.Name); err != nil {
			return nil, err
		}
	}
	auth, err := gitauth.ForConfigSync(git.AuthMethod, s)
	if err != nil {
		return nil, err
	}
	return repo.NewRemote(u, auth, o)
}

// checkServer returns an error if an address is not that of a git server.
func checkServer(u repo.URL) error {
	var kind string
	switch {
	case u.Local():
		kind = "directory"
	case u.Registry():
		kind = "registry"
	default:
		return nil
	}
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "the repository is a %s, which a ConfigSync does not read: use a git server", kind)
}

// GatewaySyncRemote returns the remote of a GatewaySync. It reads the Secrets of git when the remote needs them.
func GatewaySyncRemote(ctx context.Context, git *v1alpha1.GitSpec, read SecretReader, o repo.RemoteOptions) (*repo.Remote, error) {
	u, err := repo.ParseURL(git.Repo)
	if err != nil {
		return nil, err
	}
	if err := checkServer(u); err != nil {
		return nil, err
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
	v := strings.TrimRight(string(data[ref.Key]), " \t\r\n")
	if v == "" {
		return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed, "Secret %s has no key %s", ref.Name, ref.Key)
	}
	return secret.New(v), nil
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
