package push

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/hooks/bundle"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

// run runs stoker push.
func run(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, talk bytes.Buffer
	command := NewCommand(&out)
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetOut(&talk)
	command.SetErr(&talk)
	command.SetArgs(args)
	err = command.ExecuteContext(t.Context())
	return strings.TrimSpace(out.String()), err
}

// An agent gets from the artifact the tree that it gets from git, and the same commit gives the same digest.
func TestPush(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Git("remote", "add", "origin", "https://user:S3CR3T@git.example.com/plants/line.git?token=S3CR3T#S3CR3T")
	long := strings.Repeat("folder/", 30) + "file.json"
	commit := clone.Commit("one", gitserver.Files(map[string]string{"projects/line/project.json": "{}", "a.b/c": "", "a/ü": "x", long: "deep"}),
		gitserver.Script("run.sh", "#!"), gitserver.Symlink("link", "run.sh"), gitserver.Submodule("module", strings.Repeat("a", 40)))
	registry := ociregistry.Start(t)
	address := registry.Repo() + ":1.0"
	first, err := run(t, address, "--repo", clone.Dir, "--ref", "main", "--tag", "stable")
	require.NoError(t, err)
	name, digest, _ := strings.Cut(first, "@")
	assert.Equal(t, registry.Repo(), name)

	u, err := repo.ParseURL(registry.Repo())
	require.NoError(t, err)
	remote, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, remote.Close()); assert.NoError(t, store.Close()) }()
	for _, ref := range []string{"1.0", "stable", digest} {
		t.Run(ref, func(t *testing.T) {
			parsed, err := repo.ParseRef(ref)
			require.NoError(t, err)
			at, err := remote.Resolve(t.Context(), parsed)
			require.NoError(t, err)
			_, err = store.Fetch(t.Context(), remote, at.Commit, at.Ref)
			require.NoError(t, err)
			root, err := store.RootTree(at.Commit)
			require.NoError(t, err)
			assert.Equal(t, withoutModule(clone), root.String())
			made, err := store.Committed(at.Commit)
			require.NoError(t, err)
			assert.Equal(t, clone.Git("log", "-1", "--format=%ct", "main"), fmt.Sprint(made.Unix()))
		})
	}
	t.Run("again", func(t *testing.T) {
		registry.Requests()
		again, err := run(t, address, "--repo", clone.Dir, "--ref", commit)
		require.NoError(t, err)
		assert.Equal(t, first, again)
		for _, r := range registry.Requests() {
			assert.NotContains(t, r, "/uploads/", "what the registry has is not sent again")
		}
	})
	t.Run("another commit", func(t *testing.T) {
		clone.Commit("two", gitserver.Write("projects/line/project.json", "{ }"))
		other, err := run(t, address, "--repo", clone.Dir, "--ref", "main")
		require.NoError(t, err)
		assert.NotEqual(t, first, other)
	})
	t.Run("the annotations have no password", func(t *testing.T) {
		a, err := fromClone(context.Background(), clone.Dir, "main")
		require.NoError(t, err)
		assert.Contains(t, string(a.manifest), `"org.opencontainers.image.source":"https://git.example.com/plants/line.git"`)
		assert.NotContains(t, string(a.manifest), "S3CR3T")
		require.NoError(t, a.Close())
		assert.NoFileExists(t, a.file.Name())
	})
}

// withoutModule returns the id of the tree of main without its submodule, which agents skip in git, too.
func withoutModule(clone *gitserver.Repo) string {
	head := clone.Head()
	defer clone.ForcePush(head)
	clone.Commit("without", gitserver.Delete("module"))
	return clone.Git("rev-parse", "main^{tree}")
}

func TestPushFails(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Commit("one", gitserver.Write("a", "b"))
	registry := ociregistry.Start(t)
	for name, c := range map[string]struct{ address, ref, says string }{
		"no tag":               {registry.Repo(), "main", "has no tag"},
		"no registry":          {"https://git.example.com/a:b", "main", "not the address of a registry"},
		"a digest":             {registry.Repo() + "@sha256:" + strings.Repeat("0", 64), "main", "has a tag or a digest"},
		"no such ref":          {registry.Repo() + ":1", "nothing", "nothing"},
		"no such repository":   {strings.Replace(registry.Repo(), "plants", "others", 1) + ":1", "main", "404"},
		"an invalid tag":       {registry.Repo() + ":-", "main", "is not a tag"},
		"a path agents refuse": {registry.Repo() + ":1", "backslash", "agents would refuse the artifact"},
		"a password, no tag":   {"oci://ci:S3CR3T@registry.example.com/line", "main", "has no tag"},
		"a password, no path":  {"oci://ci:S3CR3T@registry.example.com", "main", ""}, // any error
		"a password, no oci":   {"https://ci:S3CR3T@registry.example.com/line:1", "main", "not the address of a registry"},
		"oci:// without TLS":   {strings.Replace(registry.Repo(), "oci+http", "oci", 1) + ":1", "main", "oci+http://"},
		"no such directory":    {registry.Repo() + ":1", "", "open the clone"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.ref == "backslash" {
				clone.Commit("bad", gitserver.Write(`a\b`, "x"))
				clone.Branch("backslash", "main")
				c.ref = "main"
				defer clone.ForcePush(clone.Git("rev-parse", "main^"))
			}
			args := []string{c.address, "--repo", clone.Dir, "--ref", c.ref}
			if c.ref == "" {
				args = []string{c.address, "--repo", filepath.Join(t.TempDir(), "nothing")}
			}
			_, err := run(t, args...)
			assert.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	t.Run("invalid --tag", func(t *testing.T) {
		registry.Requests()
		_, err := run(t, registry.Repo()+":1", "--repo", clone.Dir, "--ref", "main", "--tag", "stable,-x")
		assert.ErrorContains(t, err, `--tag: "-x" is not a tag`)
		assert.Empty(t, registry.Requests(), "nothing may be pushed")
	})
}

// A push uses the file that docker login or podman login writes, in each place that a variable of the environment names.
func TestLogins(t *testing.T) {
	dir := t.TempDir()
	clone := gitserver.NewRepo(t, filepath.Join(dir, "line.git"))
	clone.Commit("one", gitserver.Write("a", "b"))
	registry := ociregistry.Start(t)
	registry.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if _, password, _ := r.BasicAuth(); password == "S3CR3T" {
			return false
		}
		w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	auth := base64.StdEncoding.EncodeToString([]byte("ci:S3CR3T"))
	login := filepath.Join(dir, "containers", "auth.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(login), 0o700))
	require.NoError(t, os.WriteFile(login, []byte(`{"auths":{"`+strings.TrimPrefix(registry.URL, "http://")+`":{"auth":"`+auth+`"}}}`), 0o600))
	require.NoError(t, os.Link(login, filepath.Join(dir, "config.json")))
	damaged := filepath.Join(dir, "damaged.json")
	require.NoError(t, os.WriteFile(damaged, []byte("{"), 0o600))
	for variable, value := range map[string]string{"DOCKER_CONFIG": dir, "REGISTRY_AUTH_FILE": login, "XDG_RUNTIME_DIR": dir} {
		t.Run(variable, func(t *testing.T) {
			for _, name := range []string{"DOCKER_CONFIG", "XDG_RUNTIME_DIR"} {
				t.Setenv(name, t.TempDir())
			}
			t.Setenv("REGISTRY_AUTH_FILE", "")
			_, err := run(t, registry.Repo()+":1", "--repo", clone.Dir, "--ref", "main")
			assert.ErrorContains(t, err, "log in first")
			if variable == "DOCKER_CONFIG" {
				t.Setenv("REGISTRY_AUTH_FILE", damaged) // a login of docker needs no file of podman
			}
			t.Setenv(variable, value)
			_, err = run(t, registry.Repo()+":1", "--repo", clone.Dir, "--ref", "main")
			assert.NoError(t, err)
		})
	}
	for program, key := range map[string]string{"docker": "https://index.docker.io/v1/", "podman": "docker.io"} {
		t.Run("Docker Hub with "+program, func(t *testing.T) {
			hub := filepath.Join(t.TempDir(), "config.json")
			require.NoError(t, os.WriteFile(hub, []byte(`{"auths":{"`+key+`":{"auth":"`+auth+`"}}}`), 0o600))
			if program == "docker" {
				t.Setenv("DOCKER_CONFIG", filepath.Dir(hub))
			} else {
				t.Setenv("DOCKER_CONFIG", t.TempDir())
				t.Setenv("REGISTRY_AUTH_FILE", hub)
			}
			client, err := bundle.Client()
			require.NoError(t, err)
			login, err := client.Credential(t.Context(), "registry-1.docker.io")
			require.NoError(t, err)
			assert.Equal(t, "S3CR3T", login.Password)
			login, err = client.Credential(t.Context(), "registry.example.com")
			require.NoError(t, err)
			assert.Empty(t, login.Password, "a login is only for its registry")
		})
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Commit("one", gitserver.Write("a", "b"))
	registry := ociregistry.Start(t)
	lines := document.Open(t)
	for _, page := range []string{"docs/how-to/registry.md", "docs/reference/cli.md"} {
		for c := range lines.Of(page) {
			t.Run(page+"/"+c.Text, func(t *testing.T) {
				line, ok := strings.CutPrefix(strings.Replace(c.Text, "oci://registry.example.com/plants/line", registry.Repo(), 1), "stoker push ")
				require.True(t, ok)
				printed, err := run(t, append(strings.Fields(line), "--repo", clone.Dir, "--ref", "main")...)
				require.NoError(t, err)
				assert.Contains(t, printed, "@sha256:")
			})
		}
	}
}
