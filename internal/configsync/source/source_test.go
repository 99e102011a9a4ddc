package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

func TestMain(m *testing.M) {
	builder.Main(render.Functions())
	os.Exit(m.Run())
}

// site is a repository on a real git server.
type site struct {
	*gitserver.Repo
	server *gitserver.Server
}

func newSite(t *testing.T) site {
	t.Helper()
	root := t.TempDir()
	repository := gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
	server, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return site{repository, server}
}

func (s site) open(t *testing.T, w CommitSpec) (*Commit, error) {
	t.Helper()
	remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: s.server.URL("plant.git")}, nil, repo.RemoteOptions{})
	require.NoError(t, err)
	c, err := Open(t.Context(), remote, w, Slot{})
	if err == nil {
		t.Cleanup(func() { require.NoError(t, c.Close()) })
	}
	return c, err
}

const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

func TestReadFetchesNamedFilesOnly(t *testing.T) {
	s := newSite(t)
	edits := []gitserver.Edit{
		gitserver.Write("k8s/a.yaml", object), gitserver.Write("k8s/sub/b.yml", object), gitserver.Write("k8s/c.JSON", "{}"), gitserver.Write("k8s/README.md", "text"),
		gitserver.Write("certs/ca.pem", "certificate"),
	}
	for i := range 200 {
		edits = append(edits, gitserver.Write("projects/p/"+strings.Repeat("x", i+1), strings.Repeat("large ", 2000)+string(rune('a'+i%26))+strings.Repeat("z", i)))
	}
	commit := s.Commit("first", edits...)
	c, err := s.open(t, CommitSpec{Ref: "main"})
	require.NoError(t, err)
	assert.Equal(t, commit, c.ID.String())
	s.server.Forget()
	layers, files, err := c.Read(t.Context(), []string{"k8s", "k8s/a.yaml"}, []string{"certs/ca.pem"}, nil, true)
	require.NoError(t, err)
	require.Len(t, layers, 2)
	var names []string
	for _, f := range layers[0] {
		names = append(names, f.Path)
	}
	assert.ElementsMatch(t, []string{"k8s/a.yaml", "k8s/c.JSON", "k8s/sub/b.yml"}, names)
	assert.Equal(t, map[string][]byte{"certs/ca.pem": []byte("certificate")}, files)
	assert.LessOrEqual(t, len(s.server.Requests()), 2, "all blobs must be fetched at once")
}

// A build fetches what its kustomizations name, and nothing else of the repository.
func TestReadFetchesKustomizations(t *testing.T) {
	s := newSite(t)
	s.Commit("first", gitserver.Write("sites/north/kustomization.yaml", "resources: [../../base]\npatches: [{path: p.yaml}]"), gitserver.Write("sites/north/p.yaml", object),
		gitserver.Write("sites/north/unused.yaml", "secret of git"), gitserver.Write("base/kustomization.yaml", "resources: [a.yaml]\nconfigMapGenerator: [{name: b, files: [theme.css]}]"),
		gitserver.Write("base/a.yaml", object), gitserver.Write("base/theme.css", "x"), gitserver.Write("base/README.md", "text"), gitserver.Write("sites/a.yaml", object))
	c, err := s.open(t, CommitSpec{Ref: "main"})
	require.NoError(t, err)
	s.server.Forget()
	layers, _, err := c.Read(t.Context(), []string{"sites"}, nil, nil, true)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(s.server.Requests()), 8, "files of one level must be fetched together")
	require.Len(t, layers[0], 2)
	assert.Equal(t, "sites/a.yaml", layers[0][0].Path)
	require.NotNil(t, layers[0][1].Kustomization)
	own, err := builder.NewBuilder(t.Context(), "")
	require.NoError(t, err)
	defer own.Close()
	list, err := layers[0][1].Kustomization.Build(t.Context(), own, func(_ string, content []byte) ([]byte, bool, error) { return content, false, nil })
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "sites/north/kustomization.yaml", list[0].File)
	_, _, err = c.Read(t.Context(), []string{"sites"}, nil, nil, false)
	assert.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
	assert.ErrorContains(t, err, "sites/north/kustomization.yaml")
}

// G1: what leads elsewhere, or starts programs, is refused, and the error names its path. A missing path does not count as an empty one.
func TestReadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		edit   gitserver.Edit
		path   string
		reason v1alpha1.Reason
		says   string
	}{
		"link":                      {gitserver.Symlink("k8s/link.yaml", "../../../etc/passwd"), "k8s", v1alpha1.ReasonUnsafePath, "k8s/link.yaml"},
		"link as folder":            {gitserver.Symlink("k8s/sub", "../certs"), "k8s/sub", v1alpha1.ReasonUnsafePath, "k8s/sub"},
		"link to a parent folder":   {gitserver.Symlink("up", ".."), "up/k8s", v1alpha1.ReasonUnsafePath, "up"},
		"submodule":                 {gitserver.Submodule("k8s/mod", strings.Repeat("a", 40)), "k8s", v1alpha1.ReasonUnsupportedRepository, "k8s/mod"},
		"remote base":               {gitserver.Write("k8s/kustomization.yaml", "resources: [\"https://example.com/a?ref=b\"]"), "k8s", v1alpha1.ReasonManifestInvalid, "k8s/kustomization.yaml\": resources[0]"},
		"exec generator":            {gitserver.Write("k8s/sub/Kustomization", "generators: [exec.yaml]"), "k8s", v1alpha1.ReasonManifestInvalid, "k8s/sub/Kustomization\": generators"},
		"base outside":              {gitserver.Write("k8s/kustomization.yml", "bases: [../../x]"), "k8s", v1alpha1.ReasonUnsafePath, "k8s/kustomization.yml\": resources[0]"},
		"linked base":               {gitserver.Symlink("base", "k8s"), "site", v1alpha1.ReasonUnsafePath, "site/kustomization.yaml\": resources[0]"},
		"base in a submodule":       {gitserver.Submodule("base", strings.Repeat("a", 40)), "site", v1alpha1.ReasonUnsupportedRepository, "site/kustomization.yaml\": resources[0]"},
		"path of the kustomization": {gitserver.Write("x", "x"), "site/kustomization.yaml", v1alpha1.ReasonManifestInvalid, "to its folder"},
		"LFS pointer in data":       {gitserver.Write("k8s/kustomization.yaml", "configMapGenerator: [{name: a, files: [big]}]"), "k8s", v1alpha1.ReasonLFSPointer, "k8s/big"},
		"old LFS pointer":           {gitserver.Write("k8s/big.yaml", "version https://hawser.github.com/spec/v1\noid sha256:ab\nsize 1\n"), "k8s", v1alpha1.ReasonLFSPointer, "k8s/big.yaml"},
		"LFS pointer":               {gitserver.Write("k8s/big.yaml", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n"), "k8s", v1alpha1.ReasonLFSPointer, "k8s/big.yaml"},
		"too many bytes":            {gitserver.Write("k8s/big.yaml", strings.Repeat("x", 17<<20)), "k8s", v1alpha1.ReasonLimitExceeded, "k8s/big.yaml"},
		"too deep folders":          {gitserver.Write("k8s/"+strings.Repeat("d/", 40)+"a.yaml", object), "k8s", v1alpha1.ReasonLimitExceeded, "k8s"},
		"missing path":              {gitserver.Write("x", "x"), "k8s2", v1alpha1.ReasonSourceMissing, "k8s2"},
		"path below file":           {gitserver.Write("x", "x"), "k8s/a.yaml/b", v1alpha1.ReasonSourceMissing, "k8s/a.yaml/b"},
		"path without objects":      {gitserver.Write("docs/README.md", "x"), "docs", v1alpha1.ReasonSourceMissing, "docs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.Commit("change", gitserver.Write("k8s/a.yaml", object), gitserver.Write("site/kustomization.yaml", "resources: [../base/sub]"), c.edit,
				gitserver.Write("k8s/big", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n"))
			commit, err := s.open(t, CommitSpec{Ref: "main"})
			require.NoError(t, err)
			_, _, err = commit.Read(t.Context(), []string{c.path}, nil, nil, true)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// F8: Open finds the commit that the spec or a SyncTarget names, and refuses a commit of a fork.
func TestOpenResolves(t *testing.T) {
	s := newSite(t)
	first := s.Commit("first", gitserver.Write("k8s/a.yaml", object))
	second := s.Commit("second", gitserver.Write("k8s/b.yaml", object))
	s.Branch("fork", s.Orphan("fork", gitserver.Write("k8s/a.yaml", object)))
	fork := strings.TrimSpace(s.Git("rev-parse", "fork"))
	s.Branch("main", second)
	s.Tag("v1", first)
	for name, c := range map[string]struct {
		wanted CommitSpec
		commit string
		reason v1alpha1.Reason
	}{
		"branch":              {CommitSpec{Ref: "main"}, second, ""},
		"tag":                 {CommitSpec{Ref: "v1"}, first, ""},
		"commit":              {CommitSpec{Ref: first}, first, ""},
		"commit of branch":    {CommitSpec{Ref: first, Within: "main"}, first, ""},
		"commit of fork":      {CommitSpec{Ref: fork, Within: "main"}, "", v1alpha1.ReasonRefNotAllowed},
		"no such ref":         {CommitSpec{Ref: "nothing"}, "", v1alpha1.ReasonRefNotFound},
		"target":              {CommitSpec{Ref: "main", Commit: id(t, first), Spec: &v1alpha1.GitSpec{Ref: "main"}}, first, ""},
		"target of fork":      {CommitSpec{Ref: "main", Commit: id(t, fork), Spec: &v1alpha1.GitSpec{Ref: "main"}}, "", v1alpha1.ReasonRefNotAllowed},
		"target, not allowed": {CommitSpec{Ref: "fork", Commit: id(t, fork), Spec: &v1alpha1.GitSpec{Ref: "main", AllowedRefs: []string{"main"}}}, "", v1alpha1.ReasonRefNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.open(t, c.wanted)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			if c.reason == "" {
				assert.Equal(t, c.commit, got.ID.String())
			}
		})
	}
}

func id(t *testing.T, text string) plan.ID {
	t.Helper()
	commit, err := plan.ParseID(text)
	require.NoError(t, err)
	return commit
}

// F5: a ConfigSync reads git servers, and no directory of the machine that runs the command.
func TestLocalRepositoryIsRefused(t *testing.T) {
	for _, url := range []string{"/etc", "file:///srv/git"} {
		t.Run(url, func(t *testing.T) {
			_, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: url}, nil, repo.RemoteOptions{})
			assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
			_, err = GatewaySyncRemote(t.Context(), &v1alpha1.GitSpec{Repo: url}, nil, repo.RemoteOptions{})
			assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
		})
	}
}

// G4: keys of a Secret that are missing or wrong are named, and never shown.
func TestCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		method v1alpha1.ConfigAuthMethod
		data   map[string]string
		says   string
	}{
		"password":     {v1alpha1.ConfigAuthHTTPS, map[string]string{"password": "S3CR3T"}, ""},
		"token":        {v1alpha1.ConfigAuthHTTPS, map[string]string{"token": "S3CR3T\n", "username": "deploy"}, ""},
		"neither":      {v1alpha1.ConfigAuthHTTPS, map[string]string{"username": "S3CR3T"}, "no key password"},
		"ssh":          {v1alpha1.ConfigAuthSSH, map[string]string{"ssh-privatekey": "S3CR3T", "known_hosts": "x"}, ""},
		"ssh, no key":  {v1alpha1.ConfigAuthSSH, map[string]string{"known_hosts": "S3CR3T"}, "no key ssh-privatekey"},
		"app":          {v1alpha1.ConfigAuthGitHubApp, map[string]string{"appId": "1", "installationId": "2", "privateKey": "S3CR3T"}, ""},
		"app, no id":   {v1alpha1.ConfigAuthGitHubApp, map[string]string{"appId": "S3CR3T", "installationId": "2", "privateKey": "x"}, "appId"},
		"app, no key":  {v1alpha1.ConfigAuthGitHubApp, map[string]string{"appId": "1", "installationId": "2"}, "privateKey"},
		"empty Secret": {v1alpha1.ConfigAuthSSH, nil, "ssh-privatekey"},
	} {
		t.Run(name, func(t *testing.T) {
			read := func(context.Context, string) (map[string][]byte, error) {
				data := map[string][]byte{}
				for k, v := range c.data {
					data[k] = []byte(v)
				}
				return data, nil
			}
			url := "https://git.example.com/plant.git"
			if c.method == v1alpha1.ConfigAuthSSH {
				url = "ssh://git@git.example.com/plant.git"
			}
			remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: url, AuthMethod: c.method, AuthSecretRef: &v1alpha1.ConfigObjectRef{Name: "git"}}, read, repo.RemoteOptions{})
			if c.says == "" {
				require.NoError(t, err)
				require.NoError(t, remote.Close())
				return
			}
			require.ErrorContains(t, err, c.says)
			assert.True(t, failure.Is(err, v1alpha1.ReasonAuthFailed))
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

func TestCloneFindsRoot(t *testing.T) {
	root := t.TempDir()
	gitserver.NewRepo(t, filepath.Join(root, "origin.git"))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "clone", ".git"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "clone", "k8s", "base"), 0o755))
	remote, inside, err := CloneRemote(filepath.Join(root, "clone", "k8s", "base"), repo.RemoteOptions{})
	require.NoError(t, err)
	require.NoError(t, remote.Close())
	assert.Equal(t, "k8s/base", inside)
	_, _, err = CloneRemote(t.TempDir(), repo.RemoteOptions{})
	assert.ErrorContains(t, err, "not in a clone")
}

func TestExcludes(t *testing.T) {
	s := newSite(t)
	s.Commit("first", gitserver.Write("a.yaml", object), gitserver.Write(".github/workflows/ci.yml", "on: push"), gitserver.Write("lib/values.yaml", "a: b"),
		gitserver.Write("compose.yml", "services: {}"), gitserver.Write("projects/p/project.json", "{}"),
		gitserver.Write("lib/a.jsonnet", "{}"), gitserver.Write("lib/b.yaml", object))
	c, err := s.open(t, CommitSpec{Ref: "main"})
	require.NoError(t, err)
	read := func(excludes ...string) (paths []string, err error) {
		layers, _, err := c.Read(t.Context(), []string{"."}, nil, Excludes(&v1alpha1.ConfigSource{Git: &v1alpha1.ConfigGit{ConfigFiles: v1alpha1.ConfigFiles{Excludes: excludes}}}), true)
		if err != nil {
			return nil, err
		}
		for _, f := range layers[0] {
			paths = append(paths, f.Path)
		}
		return paths, nil
	}
	paths, err := read("projects/")
	require.NoError(t, err)
	assert.Equal(t, []string{"a.yaml", "lib/a.jsonnet", "lib/b.yaml"}, paths)
	paths, err = read("lib/", "**/project.json")
	require.NoError(t, err)
	assert.Equal(t, []string{"a.yaml"}, paths)

	s.Commit("second", gitserver.Write("lib/kustomization.yaml", "resources: [b.yaml]"), gitserver.Write("app/Chart.yaml", "name: app"), gitserver.Write("app/c.yaml", object))
	c, err = s.open(t, CommitSpec{Ref: "main"})
	require.NoError(t, err)
	paths, err = read("projects/")
	require.NoError(t, err)
	assert.Equal(t, []string{"a.yaml", "app", "lib"}, paths)
	paths, err = read("projects/", "**/kustomization.yaml", "app/Chart.yaml")
	require.NoError(t, err)
	assert.Equal(t, []string{"a.yaml", "app/c.yaml", "lib/a.jsonnet", "lib/b.yaml"}, paths)
}

// G5: each tree is read once, however many paths a build looks up, and a run that is over looks up none.
func TestLookups(t *testing.T) {
	root := t.TempDir()
	edits := []gitserver.Edit{gitserver.Write("k8s/sub/a.yaml", "{}")}
	for i := range 1000 {
		edits = append(edits, gitserver.Write(fmt.Sprint("file-", i), "x"))
	}
	gitserver.NewRepo(t, filepath.Join(root, "plant.git")).Commit("first", edits...)
	server, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: server.URL("plant.git")}, nil, repo.RemoteOptions{})
	require.NoError(t, err)
	c, err := Open(t.Context(), remote, CommitSpec{Ref: "main"}, Slot{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	ctx, cancel := context.WithCancelCause(t.Context())
	w, err := c.walker(ctx, nil, true)
	require.NoError(t, err)
	for path, want := range map[string]builder.Kind{"k8s/sub/a.yaml": builder.File, "k8s/sub": builder.Folder, "file-7": builder.File, "k8s/none": builder.Nothing, "file-7/x": builder.Nothing} {
		t.Run(path, func(t *testing.T) {
			got, err := w.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	assert.Less(t, testing.AllocsPerRun(10, func() { _, _ = w.Stat("k8s/sub/a.yaml") }), 20.0)
	assert.Less(t, testing.AllocsPerRun(10, func() { _, _ = w.enter(".", w.root, 0) }), 20.0)

	w.trees, w.entries = map[plan.ID]*tree{}, maxEntries-1000
	_, err = w.Stat("k8s")
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
	over := errors.New("the run is over")
	cancel(over)
	_, err = w.Stat("file-7")
	assert.ErrorIs(t, err, over)
	_, _, err = c.Read(ctx, []string{"nothing"}, nil, nil, true)
	assert.ErrorIs(t, err, over)
}
