// Package registry pushes artifacts to real registries and imports them as agents do. It is a module of its own because of
// the dependencies of the registries.
package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/push"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

// registries are the real ones, and the one that tests use.
var registries = map[string]func(*testing.T) http.Handler{
	"distribution": func(t *testing.T) http.Handler {
		logrus.SetOutput(io.Discard)
		config := &configuration.Configuration{Storage: configuration.Storage{"inmemory": nil, "maintenance": {"uploadpurging": map[any]any{"enabled": false}}}}
		config.Log.Level = "error"
		return handlers.NewApp(context.WithoutCancel(t.Context()), config)
	},
	"go-containerregistry": func(*testing.T) http.Handler {
		return ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true))
	},
	"ours": func(t *testing.T) http.Handler { return ociregistry.New(t) },
}

func TestRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Commit("one", gitserver.Files(map[string]string{"projects/line/project.json": "{}", "a/b": strings.Repeat("b", 1<<20)}), gitserver.Script("run.sh", "#!"))
	tree := clone.Git("rev-parse", "main^{tree}")
	commits := map[string]bool{}
	for name, open := range registries {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(open(t))
			defer server.Close()
			address := "oci+http://" + strings.TrimPrefix(server.URL, "http://") + "/" + ociregistry.Repository
			var out bytes.Buffer
			command := push.NewCommand(&out)
			command.SetArgs([]string{address + ":1.0", "--repo", clone.Dir, "--ref", "main", "--tag", "stable"})
			require.NoError(t, command.ExecuteContext(t.Context()))
			_, digest, _ := strings.Cut(strings.TrimSpace(out.String()), "@")

			u, err := repo.ParseURL(address)
			require.NoError(t, err)
			remote, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
			require.NoError(t, err)
			store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
			require.NoError(t, err)
			defer func() { assert.NoError(t, remote.Close()); assert.NoError(t, store.Close()) }()
			var first repo.Resolution
			// sequence: all name the commit of the first
			for _, name := range []string{"1.0", "stable", digest} {
				ref, err := repo.ParseRef(name)
				require.NoError(t, err)
				at, err := remote.Resolve(t.Context(), ref)
				require.NoError(t, err)
				if first.Commit.IsZero() {
					first = at
				}
				assert.Equal(t, first.Commit, at.Commit)
			}
			_, err = store.Fetch(t.Context(), remote, first.Commit, first.Ref)
			require.NoError(t, err)
			root, err := store.RootTree(first.Commit)
			require.NoError(t, err)
			assert.Equal(t, tree, root.String())
			commits[first.Commit.String()] = true

			// Another agent finds the commit among the tags.
			other, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
			require.NoError(t, err)
			empty, err := repo.Open(t.TempDir(), repo.StoreOptions{})
			require.NoError(t, err)
			defer func() { assert.NoError(t, other.Close()); assert.NoError(t, empty.Close()) }()
			_, err = empty.Fetch(t.Context(), other, first.Commit, "")
			assert.NoError(t, err)
			missing, err := repo.ParseRef("2.0")
			require.NoError(t, err)
			_, err = other.Resolve(t.Context(), missing)
			assert.ErrorContains(t, err, "has no tag or digest")

			// An image for several platforms is found, and refused with what to do instead.
			manifests := server.URL + "/v2/" + ociregistry.Repository + "/manifests/"
			send := func(method, name, header, mediaType, body string) *http.Response {
				request, err := http.NewRequestWithContext(t.Context(), method, manifests+name, strings.NewReader(body))
				require.NoError(t, err)
				request.Header.Set(header, mediaType)
				res, err := server.Client().Do(request)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				return res
			}
			const manifest = "application/vnd.oci.image.manifest.v1+json"
			size := send(http.MethodHead, digest, "Accept", manifest, "").ContentLength
			// sequence: both are in one registry
			for tag, index := range map[string]string{
				"oci": "application/vnd.oci.image.index.v1+json", "docker": "application/vnd.docker.distribution.manifest.list.v2+json",
			} {
				list := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"platform":{"architecture":"amd64","os":"linux"}}]}`,
					index, manifest, digest, size)
				require.Equal(t, http.StatusCreated, send(http.MethodPut, tag, "Content-Type", index, list).StatusCode)
				ref, err := repo.ParseRef(tag)
				require.NoError(t, err)
				_, err = other.Resolve(t.Context(), ref)
				assert.ErrorContains(t, err, "an index of several manifests")
			}
		})
	}
	assert.Len(t, commits, 1, "the commit does not depend on the registry")
}

// F24: what cosign signs with a key pair, in both of its formats, is verified, with and without the list of referrers of the registry.
func TestCosign(t *testing.T) {
	program, err := exec.LookPath("cosign")
	if err != nil {
		t.Skip("cosign is not installed")
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("COSIGN_PASSWORD", "")
	dir := t.TempDir()
	cosign := func(t *testing.T, args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, args...)
		command.Dir = dir
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	cosign(t, "generate-key-pair")
	public, err := os.ReadFile(filepath.Join(dir, "cosign.pub"))
	require.NoError(t, err)
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	for name, open := range registries {
		if name == "ours" { // it has no uploads in pieces
			continue
		}
		for format, flag := range map[string]string{"bundle": "--new-bundle-format=true", "payload": "--new-bundle-format=false"} {
			t.Run(name+"/"+format, func(t *testing.T) {
				server := httptest.NewServer(open(t))
				defer server.Close()
				path := strings.TrimPrefix(server.URL, "http://") + "/" + ociregistry.Repository
				u, err := repo.ParseURL("oci+http://" + path)
				require.NoError(t, err)
				remote, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
				require.NoError(t, err)
				store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
				require.NoError(t, err)
				defer func() { assert.NoError(t, remote.Close()); assert.NoError(t, store.Close()) }()
				verify := func(tag string) (digest string, _ error) {
					clone.Commit(tag, gitserver.Write("tag", name+format+tag))
					var out bytes.Buffer
					command := push.NewCommand(&out)
					command.SetArgs([]string{"oci+http://" + path + ":" + tag, "--repo", clone.Dir, "--ref", "main"})
					require.NoError(t, command.ExecuteContext(t.Context()))
					_, digest, _ = strings.Cut(strings.TrimSpace(out.String()), "@")
					if tag == "signed" {
						cosign(t, "sign", "--key", "cosign.key", "--use-signing-config=false", "--tlog-upload=false", "--allow-insecure-registry", "--yes", flag, path+"@"+digest)
					}
					ref, err := repo.ParseRef(tag)
					require.NoError(t, err)
					at, err := remote.Resolve(t.Context(), ref)
					require.NoError(t, err)
					_, err = store.Fetch(t.Context(), remote, at.Commit, at.Ref)
					require.NoError(t, err)
					v := repo.NewVerifier(v1alpha1.GitVerify{}, "cosign.pub", func() ([]byte, error) { return public, nil })
					return digest, store.Verify(t.Context(), v, remote, at.Commit, tag)
				}
				_, err = verify("signed")
				require.NoError(t, err)
				digest, err := verify("unsigned")
				assert.ErrorContains(t, err, digest+" has no signature of cosign")
			})
		}
	}
}
