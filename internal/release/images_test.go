package main

import (
	"bytes"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The images in a registry and in an archive are the same, have the programs of this checkout, and are what the Dockerfile makes.
func TestImages(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(&bytes.Buffer{}, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://") + "/plant"
	own := "linux/" + runtime.GOARCH
	archive := filepath.Join(t.TempDir(), "images.tar")
	make := func() string {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"images", "--registry", host, "--tar", archive, "--platforms", own, "--version", "1.2.3"}, &out, &errs)
		require.Equal(t, 0, code, errs.String())
		return out.String()
	}
	first := make()
	assert.Equal(t, first, make(), "two builds give the same digests")

	dockerfile, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	for _, p := range programs {
		t.Run(p.image, func(t *testing.T) {
			ref, err := name.NewTag(host + "/" + p.image + ":1.2.3")
			require.NoError(t, err)
			index, err := remote.Index(ref)
			require.NoError(t, err)
			digest, err := index.Digest()
			require.NoError(t, err)
			assert.Contains(t, first, ref.String()+"@"+digest.String()+"\n")
			list, err := index.IndexManifest()
			require.NoError(t, err)
			require.Len(t, list.Manifests, 1)
			assert.Equal(t, own, list.Manifests[0].Platform.String())

			i, err := index.Image(list.Manifests[0].Digest)
			require.NoError(t, err)
			c, err := i.ConfigFile()
			require.NoError(t, err)
			assert.Equal(t, runtime.GOARCH, c.Architecture)
			assert.Equal(t, "1.2.3", c.Config.Labels["org.opencontainers.image.version"])
			matchesDockerfile(t, string(dockerfile), p, c)

			saved, err := tarball.ImageFromPath(archive, &ref)
			require.NoError(t, err)
			assert.Equal(t, diffIDs(t, i), diffIDs(t, saved))
		})
	}
}

// matchesDockerfile compares an image with the target of the Dockerfile.
func matchesDockerfile(t *testing.T, dockerfile string, p program, c *v1.ConfigFile) {
	t.Helper()
	_, target, ok := strings.Cut(dockerfile, " AS "+p.image+"\n")
	require.True(t, ok)
	target, _, _ = strings.Cut(target, "\nFROM ")
	assert.Contains(t, target, `ENTRYPOINT ["`+c.Config.Entrypoint[0]+`"]`)
	assert.Contains(t, target, "COPY --from=build /out/"+p.binary+" /"+p.binary+"\n")
	assert.Contains(t, dockerfile, "USER "+c.Config.User+"\n")
	assert.Contains(t, dockerfile, "COPY --from=build /out/LICENSE /out/THIRD_PARTY.txt /\n")
	found := regexp.MustCompile(`org\.opencontainers\.image\.(source|licenses)="([^"]*)"`).FindAllStringSubmatch(dockerfile, -1)
	require.Len(t, found, len(labels))
	for _, l := range found { // sequence: labels of one image
		assert.Equal(t, l[2], c.Config.Labels["org.opencontainers.image."+l[1]])
	}
}

// diffIDs returns the digests of the uncompressed layers of an image.
func diffIDs(t *testing.T, i v1.Image) (ids []string) {
	t.Helper()
	c, err := i.ConfigFile()
	require.NoError(t, err)
	for _, id := range c.RootFS.DiffIDs {
		ids = append(ids, id.String())
	}
	return ids
}

func TestInvalidFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no command":         {nil, "usage: release images"},
		"no destination":     {[]string{"images"}, "make images REGISTRY="},
		"an argument":        {[]string{"images", "--tar", "x", "y"}, `unexpected argument "y"`},
		"no system":          {[]string{"images", "--tar", "x", "--platforms", "arm64"}, `"arm64" is not a platform`},
		"another system":     {[]string{"images", "--tar", "x", "--platforms", "windows/amd64"}, `"windows/amd64" is not a platform`},
		"no checkout":        {[]string{"images", "--tar", "x", "--root", "/nowhere"}, "no such file"},
		"a URL":              {[]string{"images", "--registry", "https://registry.example.com/stoker"}, "without https://"},
		"a trailing slash":   {[]string{"images", "--registry", "registry.example.com/stoker/"}, "without a slash at its end"},
		"a bad version":      {[]string{"images", "--registry", "registry.example.com/stoker", "--version", "a b"}, `--version "a b"`},
		"an unknown flag":    {[]string{"images", "--push"}, "flag provided but not defined: -push"},
		"an unknown command": {[]string{"chart"}, "usage: release images"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			assert.NotZero(t, run(t.Context(), c.args, &out, &errs))
			assert.Contains(t, errs.String(), c.says)
			assert.NotContains(t, errs.String(), "building", "a mistake is reported before minutes of building")
			assert.Empty(t, out.String())
		})
	}
}

// A folder with other files than those of an earlier release is left alone.
func TestReleaseFolder(t *testing.T) {
	r := &release{out: filepath.Join(t.TempDir(), "dist")}
	require.NoError(t, r.emptyFolder())
	require.NoError(t, os.MkdirAll(r.path("sbom"), 0o755))
	// setup: an earlier release
	for name, content := range map[string]string{
		"SHA256SUMS": "aa  crds.yaml\nbb  sbom/agent.json\n", "crds.yaml": "x", "sbom/agent.json": "y", "SHA256SUMS.sigstore.json": "z",
	} {
		require.NoError(t, os.WriteFile(r.path(name), []byte(content), 0o644))
	}
	thesis := r.path("thesis.txt")
	require.NoError(t, os.WriteFile(thesis, []byte("x"), 0o644))
	require.ErrorContains(t, r.emptyFolder(), "thesis.txt is not of an earlier release")
	assert.FileExists(t, r.path("crds.yaml"))
	require.NoError(t, os.Remove(thesis))
	require.NoError(t, r.emptyFolder())
	left, err := readNames(r.out)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// The next release recognizes the files of one that was interrupted.
func TestInterruptedRelease(t *testing.T) {
	t.Run("while it was made", func(t *testing.T) {
		r := &release{out: t.TempDir()}
		require.NoError(t, os.Mkdir(r.path(unfinished), 0o755))
		require.NoError(t, os.WriteFile(r.path(unfinished+"/agent.spdx.json"), []byte("x"), 0o644))
		assert.NoError(t, r.emptyFolder())
		assert.NoFileExists(t, r.path(unfinished+"/agent.spdx.json"))
	})
	t.Run("while it was moved", func(t *testing.T) {
		dist := t.TempDir()
		made := &release{out: t.TempDir()}
		require.NoError(t, os.WriteFile(made.path("SHA256SUMS"), []byte("aa  agent.spdx.json\nbb  crds.yaml\n"), 0o644))
		require.NoError(t, os.WriteFile(made.path("agent.spdx.json"), []byte("x"), 0o644))
		require.NoError(t, os.WriteFile(made.path("crds.yaml"), []byte("y"), 0o644))
		require.NoError(t, os.Mkdir(filepath.Join(dist, "crds.yaml"), 0o755)) // here moveTo fails
		require.Error(t, made.moveTo(dist))
		assert.FileExists(t, filepath.Join(dist, "agent.spdx.json"))
		assert.NoError(t, (&release{out: dist}).emptyFolder())
		assert.NoFileExists(t, filepath.Join(dist, "agent.spdx.json"))
	})
	t.Run("while the folder was emptied", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root may remove all files")
		}
		r := &release{out: t.TempDir()}
		fixed := r.path("sbom")
		require.NoError(t, os.Mkdir(fixed, 0o755))
		require.NoError(t, os.WriteFile(r.path("sbom/agent.json"), []byte("x"), 0o644))
		require.NoError(t, os.WriteFile(r.path("SHA256SUMS"), []byte("aa  sbom/agent.json\n"), 0o644))
		require.NoError(t, os.Chmod(fixed, 0o555))
		require.Error(t, r.emptyFolder())
		require.NoError(t, os.Chmod(fixed, 0o755))
		assert.NoError(t, r.emptyFolder())
	})
}

// Without --version and --registry, the images are those that the chart installs.
func TestDefaultsAreThoseOfTheChart(t *testing.T) {
	s, err := parseSettings([]string{"--tar", "x"}, &bytes.Buffer{})
	require.NoError(t, err)
	c, err := os.ReadFile("../../charts/stoker/Chart.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(c), "appVersion: "+s.version)
	v, err := os.ReadFile("../../charts/stoker/values.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(v), "registry: "+s.registry)
}

// Only the flag --registry pushes, and not a file that is named like it.
func TestOnlyRegistryPushes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		push bool
	}{
		"file":              {[]string{"--tar", "registry"}, false},
		"registry":          {[]string{"--registry", "registry.example.com/stoker"}, true},
		"registry with =":   {[]string{"--registry=registry.example.com/stoker"}, true},
		"both":              {[]string{"--tar", "x", "-registry", "registry.example.com/stoker"}, true},
		"an empty registry": {[]string{"--tar", "x", "--registry", ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseSettings(c.args, &bytes.Buffer{})
			require.NoError(t, err)
			assert.Equal(t, c.push, s.push)
		})
	}
}
