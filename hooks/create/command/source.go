package command

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/create"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/preflight"
	"stoker.io/stoker/internal/failure"
)

// treeSource is the tree that a GatewaySync is created from.
type treeSource struct {
	create.Source
	label string // for messages
	close func() error
}

// open opens the repository, and sets the fields of the Input that depend on the repository.
func (x *gatewaySyncFlags) open(ctx context.Context, in *create.Input) (*treeSource, error) {
	in.Git = v1alpha1.GitSpec{Repo: x.repo, Ref: x.ref}
	if x.dir == "" {
		in.Project = cmp.Or(projectName(x.repo), in.Name)
		return x.openRemote(ctx, in)
	}
	dir, err := filepath.EvalSymlinks(x.dir) // a link into a clone leads to it, as for git
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	root, folder, err := cloneOf(dir)
	if err != nil {
		return nil, err
	}
	in.Folder = folder
	checkout, err := offline.Open(root)
	if err != nil {
		return nil, err
	}
	origin, err := checkout.Origin()
	if err == nil {
		err = x.complete(in, dir, origin)
	}
	if err != nil {
		return nil, errors.Join(err, checkout.Close())
	}
	return x.openCheckout(ctx, in, checkout)
}

// cloneOf returns the repository that a directory is in, and the path of the directory in it, "" for its root.
func cloneOf(dir string) (root, folder string, err error) {
	has := func(root string, names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			_, err := os.Lstat(filepath.Join(root, name))
			return err != nil
		})
	}
	for root = dir; !has(root, ".git") && !has(root, "HEAD", "objects", "refs"); root = filepath.Dir(root) {
		if root == filepath.Dir(root) {
			return "", "", exit.Errorf(exit.Usage, "%s is in no clone: name one, or make it one with 'git init -b main', 'git add .' and 'git commit -m first'", dir)
		}
	}
	if folder, err = filepath.Rel(root, dir); folder == "." {
		folder = ""
	}
	return root, filepath.ToSlash(folder), err
}

// complete sets what a local tree does not tell: the address, and the Secret for it.
func (x *gatewaySyncFlags) complete(in *create.Input, dir, origin string) (err error) {
	// A directory, or an address that Stoker does not read, is not one that gateways reach.
	if u, err := repo.ParseURL(origin); in.Git.Repo == "" && err == nil && !u.Local() {
		in.Git.Repo, _ = withoutLogin(origin)
	}
	in.Project = cmp.Or(projectName(in.Git.Repo), projectName(filepath.ToSlash(dir)), in.Name)
	if in.Folder != "" {
		in.Project = path.Base(in.Folder)
	}
	if in.Git.Repo == "" {
		in.Git.Repo, in.RepoNote = "https://git.example.com/plants/ignition.git", "set this to the address of your repository"
	}
	if in.Git.Auth, in.Git.CASecretRef, err = x.credential(in.Git.Repo); err != nil || in.Git.Auth != nil {
		return err
	}
	u, err := repo.ParseURL(in.Git.Repo)
	if err != nil || u.Local() {
		return err
	}
	const name = "git-credentials"
	in.AuthNote = "remove this if the repository is public"
	if !u.SSH() {
		in.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: name, Key: create.TokenKey}}}
		return nil
	}
	in.AuthNote = ""
	key := &v1alpha1.SSHKeyAuth{SecretRef: v1alpha1.SecretKeyRef{Name: name, Key: create.SSHKey}}
	if !u.HasBuiltInHostKey() {
		key.KnownHosts = &v1alpha1.SecretSource{SecretRef: v1alpha1.SecretKeyRef{Name: name, Key: create.KnownHostsKey}}
	}
	in.Git.Auth = &v1alpha1.Credential{SSHKey: key}
	return nil
}

func (x *gatewaySyncFlags) openRemote(ctx context.Context, in *create.Input) (_ *treeSource, err error) {
	if in.Git.Auth, in.Git.CASecretRef, err = x.credential(x.repo); err != nil {
		return nil, err
	}
	if u, err := repo.ParseURL(x.repo); err != nil {
		return nil, err
	} else if u.SSH() && in.Git.Auth == nil {
		return nil, exit.Errorf(exit.Usage, "an ssh address needs a key: name its file with --secret git-credentials/%s=FILE", create.SSHKey)
	}
	remote, err := connect.Git(in.Git, preflight.Mounts{Files: x.secrets}, repo.RemoteOptions{})
	if err != nil {
		return nil, err
	}
	checkout, err := offline.New(remote)
	if err != nil {
		return nil, err
	}
	source, err := x.openCheckout(ctx, in, checkout)
	if failure.Reason(err, "") == v1alpha1.ReasonAuthFailed && in.Git.Auth == nil {
		err = failure.New(v1alpha1.ReasonAuthFailed, "%w\nIf the repository is private, name a file with a token: --secret git-credentials/%s=FILE", err, create.TokenKey)
	}
	return source, err
}

// openCheckout resolves the ref. It closes the checkout if it fails.
func (x *gatewaySyncFlags) openCheckout(ctx context.Context, in *create.Input, checkout *offline.Checkout) (*treeSource, error) {
	at, err := checkout.Resolve(ctx, cmp.Or(x.ref, "HEAD"))
	if x.ref == "" && failure.Reason(err, "") == v1alpha1.ReasonRefNotFound {
		err = failure.New(v1alpha1.ReasonRefNotFound, "HEAD has no commit yet: commit the folders of a gateway first, or name a branch with --ref")
	}
	if err == nil && in.Git.Ref == "" {
		branch, ok := strings.CutPrefix(at.Ref, "refs/heads/")
		if !ok {
			err = exit.Errorf(exit.Usage, "HEAD is not a branch: name a branch, a tag or a commit with --ref")
		}
		in.Git.Ref = branch
	}
	var commit *offline.Commit
	if err == nil {
		commit, err = checkout.Commit(ctx, at)
	}
	if err != nil {
		return nil, errors.Join(err, checkout.Close())
	}
	return &treeSource{commit, output.RefAt(in.Git.Ref, at.Commit.String()), checkout.Close}, nil
}

// credential returns what the flags name for spec.git.
func (x *gatewaySyncFlags) credential(address string) (*v1alpha1.Credential, *v1alpha1.SecretKeyRef, error) {
	var auth, ca, hosts *v1alpha1.SecretKeyRef
	for _, id := range slices.Sorted(maps.Keys(x.secrets)) {
		secret, key, ok := strings.Cut(id, "/")
		if !ok || secret == "" || key == "" || strings.Contains(key, "/") {
			return nil, nil, exit.Errorf(exit.Usage, "invalid --secret %.80q: use NAME/KEY=FILE", id)
		}
		ref := &v1alpha1.SecretKeyRef{Name: secret, Key: key}
		switch {
		case key == create.CAKey:
			ca = ref
		case key == create.KnownHostsKey:
			hosts = ref
		case auth != nil:
			return nil, nil, exit.Errorf(exit.Usage, "%s/%s and %s are two credentials: name one with --secret", auth.Name, auth.Key, id)
		default:
			auth = ref
		}
	}
	if auth == nil {
		if x.app != "" || hosts != nil {
			return nil, nil, exit.Errorf(exit.Usage, "name the file of the private key, too, with --secret NAME/KEY=FILE")
		}
		return nil, ca, nil
	}
	u, err := repo.ParseURL(address)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case x.app != "":
		app, installation, _ := strings.Cut(x.app, "/")
		id, errID := strconv.ParseInt(app, 10, 64)
		of, errOf := strconv.ParseInt(installation, 10, 64)
		if errID != nil || errOf != nil {
			return nil, nil, exit.Errorf(exit.Usage, "invalid --github-app %.80q: use APP_ID/INSTALLATION_ID, two numbers", x.app)
		}
		return &v1alpha1.Credential{GitHubApp: &v1alpha1.GitHubAppAuth{AppID: id, InstallationID: of, PrivateKeySecretRef: *auth}}, ca, nil
	case u.SSH() || hosts != nil || auth.Key == create.SSHKey:
		key := &v1alpha1.SSHKeyAuth{SecretRef: *auth}
		if hosts != nil {
			key.KnownHosts = &v1alpha1.SecretSource{SecretRef: *hosts}
		}
		return &v1alpha1.Credential{SSHKey: key}, ca, nil
	}
	return &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: *auth}}, ca, nil
}

// withoutLogin removes the password of an address, and its user if the address is not of ssh. It reports whether there was a password.
func withoutLogin(address string) (clean string, hasPassword bool) {
	if !strings.Contains(address, "://") {
		return address, false
	}
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address, false
	}
	user := u.User.Username()
	_, hasPassword = u.User.Password()
	if u.User = nil; user != "" && strings.Contains(u.Scheme, "ssh") {
		u.User = url.User(user)
	}
	return u.String(), hasPassword
}

// projectName returns the name for a project that is the whole repository: the last part of its address.
func projectName(address string) string {
	name := strings.TrimSuffix(path.Base(strings.TrimRight(address, "/")), ".git")
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name = name[i+1:]
	}
	if name == "." || strings.HasPrefix(name, ".") {
		return ""
	}
	return name
}
