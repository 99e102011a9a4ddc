package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/hooks/bundle"
	"stoker.io/stoker/test/document"
)

// newPublicKey writes the public half of a new key, and returns its file.
func newPublicKey(t *testing.T) (public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	open, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	public = filepath.Join(t.TempDir(), "cosign.pub")
	require.NoError(t, os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}), 0o644))
	return public
}

// newRegistry starts a registry on loopback, and returns its address.
func newRegistry(t *testing.T, more ...func(http.Handler) http.Handler) string {
	t.Helper()
	var handler http.Handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	for _, wrap := range more {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// A release for this platform is complete, describes itself truly, and its bundle brings everything to a registry.
func TestRelease(t *testing.T) {
	own := runtime.GOOS + "/" + runtime.GOARCH
	if runtime.GOOS != "linux" {
		own += ",linux/" + runtime.GOARCH
	}
	lines := document.Open(t)
	shell := document.NewShell(t, t.TempDir(), nil)
	stoker := filepath.Join(shell.Dir, "bin", "stoker")
	var typed []string
	for c := range lines.Of("docs/how-to/air-gap.md") {
		if c.Program() == "openssl" {
			shell.Type(t, c.Text)
		} else {
			typed = append(typed, c.Text)
		}
	}
	require.Len(t, typed, 2, "verify and push")
	private := filepath.Join(shell.Dir, "key.pem")
	dist := filepath.Join(t.TempDir(), "dist")
	var out, errs bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"artifacts", "--platforms", own, "--version", "1.2.3", "--out", dist, "--key", private}, &out, &errs), errs.String())
	read := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(dist, name))
		require.NoError(t, err)
		return raw
	}
	archive := "stoker_1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	unpacked := untar(t, read(archive))

	t.Run("sums", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "SHA256SUMS")
		cmd.Dir = dist
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		assert.NotContains(t, string(read("SHA256SUMS")), "/", "a release page has no folders")
	})
	t.Run("cosign verifies the sums", func(t *testing.T) {
		if _, err := exec.LookPath("cosign"); err != nil {
			t.Skip("cosign is not installed: go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3")
		}
		page, err := os.ReadFile("../../docs/how-to/air-gap.md")
		require.NoError(t, err)
		line := regexp.MustCompile(`(?m)^    cosign (verify-blob .*)$`).FindStringSubmatch(string(page))
		require.NotNil(t, line)
		for key, accepted := range map[string]bool{filepath.Join(shell.Dir, "cosign.pub"): true, newPublicKey(t): false} { // sequence: one file, two keys
			cmd := exec.CommandContext(t.Context(), "cosign", strings.Fields(strings.ReplaceAll(line[1], "cosign.pub", key))...)
			cmd.Dir = dist
			said, err := cmd.CombinedOutput()
			assert.Equal(t, accepted, err == nil, "%s", said)
		}
	})
	t.Run("the archive has the command line of this version", func(t *testing.T) {
		for _, name := range []string{"stoker", "LICENSE", "THIRD_PARTY.txt", "man/man1/stoker-set-ref.1", "completions/bash/stoker"} { // sequence: files of one archive
			assert.NotEmpty(t, unpacked[name], name)
		}
		plugin := filepath.Join(t.TempDir(), "kubectl-stoker")
		require.NoError(t, os.WriteFile(plugin, unpacked["stoker"], 0o755))
		said, err := exec.CommandContext(t.Context(), plugin, "version").Output()
		require.NoError(t, err)
		assert.Equal(t, "1.2.3\n", string(said))
	})
	t.Run("terms of a module and of Go", func(t *testing.T) {
		terms := string(unpacked["THIRD_PARTY.txt"])
		for _, part := range []string{"Go, the standard library", "github.com/go-git/go-git/v5 v5.", "k8s.io/client-go v0.", "Permission is hereby granted, free of charge"} { // sequence: parts of one text
			assert.Contains(t, terms, part)
		}
	})
	t.Run("krew and Homebrew name the archive by its sum", func(t *testing.T) {
		sum, err := sumOf(filepath.Join(dist, archive))
		require.NoError(t, err)
		var m struct {
			Spec struct {
				Version   string
				Platforms []struct{ URI, SHA256, Bin string }
			}
		}
		require.NoError(t, yaml.Unmarshal(read("krew.yaml"), &m))
		require.Len(t, m.Spec.Platforms, len(strings.Split(own, ",")))
		assert.Equal(t, "v1.2.3", m.Spec.Version)
		assert.Equal(t, sum, m.Spec.Platforms[0].SHA256)
		assert.True(t, strings.HasSuffix(m.Spec.Platforms[0].URI, "/v1.2.3/"+archive))
		assert.Contains(t, unpacked, m.Spec.Platforms[0].Bin)
		assert.Contains(t, string(read("stoker.rb")), `sha256 "`+sum+`"`)
	})
	t.Run("the list of modules is that of the program", func(t *testing.T) {
		var d spdx
		require.NoError(t, json.Unmarshal(read("stoker_"+runtime.GOOS+"_"+runtime.GOARCH+".spdx.json"), &d))
		assert.Equal(t, "SPDX-2.3", d.Version)
		names := map[string]string{}
		for _, p := range d.Packages {
			names[p.Name] = p.Version
		}
		assert.Equal(t, "1.2.3", names["stoker.io/stoker/hooks"])
		assert.Equal(t, strings.TrimPrefix(runtime.Version(), "go"), names["std"])
		assert.Contains(t, names, "github.com/spf13/cobra")
		assert.Len(t, d.Relationships, len(d.Packages), "each package is described or contained")
	})

	file := filepath.Join(dist, "stoker-1.2.3-bundle.tar")
	require.NoError(t, os.MkdirAll(filepath.Dir(stoker), 0o755))
	require.NoError(t, os.WriteFile(stoker, unpacked["stoker"], 0o755))
	shell.Set("PATH", filepath.Dir(stoker)+":"+os.Getenv("PATH"))
	host := newRegistry(t)
	page := strings.NewReplacer("stoker-0.1.0-bundle.tar", file, "registry.example.com/stoker", host+"/plant --plain-http")
	t.Run("the bundle is signed", func(t *testing.T) {
		assert.Contains(t, shell.Type(t, page.Replace(typed[0])), "is complete and signed by cosign.pub")
		another := newPublicKey(t)
		said, err := exec.CommandContext(t.Context(), stoker, "bundle", "push", file, host+"/plant", "--plain-http", "--key", another).CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(said), "the signature is not by this key")
		_, err = remote.Get(tag(t, host+"/plant/agent:1.2.3"))
		assert.Error(t, err, "nothing was pushed")
	})
	t.Run("a push brings images, chart and lists", func(t *testing.T) {
		said := shell.Type(t, page.Replace(typed[1]))
		for _, p := range programs { // sequence: images of one push
			index, err := remote.Index(tag(t, host+"/plant/"+p.image+":1.2.3"))
			require.NoError(t, err)
			digest, err := index.Digest()
			require.NoError(t, err)
			assert.Contains(t, said, host+"/plant/"+p.image+":1.2.3@"+digest.String()+"\n")
			assert.Contains(t, out.String(), "/"+p.image+":1.2.3@"+digest.String()+"\n", "make release-artifacts prints the same digest")
			list, err := index.IndexManifest()
			require.NoError(t, err)
			refers, err := remote.Referrers(tag(t, host+"/plant/"+p.image+":1.2.3").Digest(list.Manifests[0].Digest.String()))
			require.NoError(t, err)
			attached, err := refers.IndexManifest()
			require.NoError(t, err)
			require.Len(t, attached.Manifests, 1)
			found, err := remote.Get(tag(t, host+"/plant/"+p.image+":1.2.3").Digest(attached.Manifests[0].Digest.String()))
			require.NoError(t, err)
			assert.Contains(t, string(found.Manifest), `"artifactType":"`+typeSPDX+`"`)
			i, err := index.Image(list.Manifests[0].Digest)
			require.NoError(t, err)
			assert.Less(t, uncompressed(t, i), int64(66<<20), p.image)
		}
		assert.Equal(t, said, shell.Type(t, page.Replace(typed[1])), "a second push changes nothing")
	})
	t.Run("commands of the reference", func(t *testing.T) {
		for c := range lines.Of("docs/reference/cli.md") { // sequence: one registry
			said := shell.Type(t, page.Replace(c.Text))
			assert.Contains(t, said, "1.2.3", c.Text)
		}
	})
	t.Run("the chart names the images by digest", func(t *testing.T) {
		chart, err := remote.Image(tag(t, host+"/plant/stoker:1.2.3"))
		require.NoError(t, err)
		layers, err := chart.Layers()
		require.NoError(t, err)
		packed, err := layers[0].Compressed()
		require.NoError(t, err)
		raw, err := io.ReadAll(packed)
		require.NoError(t, err)
		assert.Equal(t, read("stoker-1.2.3.tgz"), raw)
		files := untar(t, raw)
		var digests map[string]string
		require.NoError(t, yaml.Unmarshal(files["stoker/files/digests.yaml"], &digests))
		assert.Len(t, digests, len(programs))
		for image, digest := range digests { // sequence: images of one release
			assert.Contains(t, out.String(), "/"+image+":1.2.3@"+digest+"\n")
		}
		assert.Contains(t, string(files["stoker/Chart.yaml"]), "\nversion: 1.2.3\nappVersion: 1.2.3\n")
		install := string(read("install.yaml"))
		assert.Contains(t, install, "/injector@"+digests["injector"])
		assert.Contains(t, install, "stoker.io/image-of-agents: ghcr.io/stoker-io/agent@"+digests["agent"])
		assert.NotContains(t, install, ":0.1.0")
	})
	t.Run("a registry with a redirect for blobs", func(t *testing.T) { testRedirect(t, stoker, file) })
	t.Run("damage", func(t *testing.T) { testDamage(t, file) })
}

func tag(t *testing.T, ref string) name.Tag {
	t.Helper()
	r, err := name.NewTag(ref)
	require.NoError(t, err)
	return r
}

func uncompressed(t *testing.T, i v1.Image) (size int64) {
	t.Helper()
	layers, err := i.Layers()
	require.NoError(t, err)
	for _, l := range layers {
		r, err := l.Uncompressed()
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, r)
		require.NoError(t, err)
		size += n
	}
	return size
}

func untar(t *testing.T, packed []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

// The credential does not follow a redirect: the blob is sent once more instead.
func testRedirect(t *testing.T, stoker, file string) {
	var elsewhere int
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	t.Cleanup(thief.Close)
	host := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, thief.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	for range 2 {
		said, err := exec.CommandContext(t.Context(), stoker, "bundle", "push", file, host+"/plant", "--plain-http").CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	_, err := remote.Index(tag(t, host+"/plant/agent:1.2.3"))
	require.NoError(t, err)
	assert.Zero(t, elsewhere)
}

// testDamage changes each kind of part of a bundle.
func testDamage(t *testing.T, file string) {
	verify := func(t *testing.T, change func(h *tar.Header, content []byte) []byte) error {
		to := filepath.Join(t.TempDir(), "bundle.tar")
		in, err := os.Open(file)
		require.NoError(t, err)
		defer in.Close()
		out, err := os.Create(to)
		require.NoError(t, err)
		w := tar.NewWriter(out)
		for r := tar.NewReader(in); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			content, err := io.ReadAll(r)
			require.NoError(t, err)
			if content = change(h, content); content == nil {
				continue
			}
			h.Size = int64(len(content))
			require.NoError(t, w.WriteHeader(h))
			_, err = w.Write(content)
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(w.Close(), out.Close()))
		b, err := bundle.Open(to)
		if err != nil {
			return err
		}
		return errors.Join(b.Verify(t.Context(), nil), b.Close())
	}
	flip := func(prefix string) func(*tar.Header, []byte) []byte {
		done := false
		return func(h *tar.Header, content []byte) []byte {
			if !done && strings.HasPrefix(h.Name, prefix) {
				done = true
				content = bytes.Clone(content)
				content[len(content)/2] ^= 1
			}
			return content
		}
	}
	without := func(prefix string) func(*tar.Header, []byte) []byte {
		done := false
		return func(h *tar.Header, content []byte) []byte {
			if !done && strings.HasPrefix(h.Name, prefix) {
				done = true
				return nil
			}
			return content
		}
	}
	rename := func(from, to string) func(*tar.Header, []byte) []byte {
		return func(h *tar.Header, content []byte) []byte {
			if h.Name == from {
				h.Name = to
			}
			return content
		}
	}
	require.NoError(t, verify(t, func(_ *tar.Header, content []byte) []byte { return content }))
	for name, c := range map[string]struct {
		change func(*tar.Header, []byte) []byte
		says   string
	}{
		"a blob":           {flip("blobs/"), "is damaged: its SHA-256 is"},
		"a file":           {flip("files/install.yaml"), "files/install.yaml is damaged"},
		"the index":        {func(h *tar.Header, c []byte) []byte { return rewritten(h, c, "index.json", "ghcr.io/", "evil.io/") }, "index.json is damaged"},
		"a missing blob":   {without("blobs/"), "is not in the bundle"},
		"a missing file":   {without("files/"), "is missing, but SHA256SUMS names it"},
		"missing sums":     {without("SHA256SUMS"), "SHA256SUMS is missing"},
		"another file":     {rename("files/install.yaml", "files/other.yaml"), "files/other.yaml is not in SHA256SUMS"},
		"a path outside":   {rename("files/install.yaml", "../install.yaml"), "is not a plain file inside of the archive"},
		"an absolute path": {rename("files/install.yaml", "/etc/passwd"), "is not a plain file inside of the archive"},
		"a name twice":     {rename("files/install.yaml", "index.json"), "is there twice"},
		"a link":           {func(h *tar.Header, c []byte) []byte { return linked(h, c) }, "is not a plain file inside of the archive"},
		"no layout":        {without("index.json"), "index.json is missing"},
		"too many manifests": {func(h *tar.Header, c []byte) []byte {
			return replaced(h, c, "index.json", `{"manifests":[`+strings.Repeat(`{},`, 1000)+`{}]}`)
		}, "index.json: 1001 manifests, and at most 1000 are read"},
		"an index of words": {func(h *tar.Header, c []byte) []byte { return replaced(h, c, "index.json", "words") }, "index.json: invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, verify(t, c.change), c.says)
		})
	}
	t.Run("no archive", func(t *testing.T) {
		_, err := bundle.Open("artifacts_test.go")
		assert.ErrorContains(t, err, "artifacts_test.go is not a bundle of Stoker")
	})
}

func rewritten(h *tar.Header, content []byte, name, old, new string) []byte {
	if h.Name == name {
		return bytes.ReplaceAll(content, []byte(old), []byte(new))
	}
	return content
}

func replaced(h *tar.Header, content []byte, name, with string) []byte {
	if h.Name == name {
		return []byte(with)
	}
	return content
}

func linked(h *tar.Header, content []byte) []byte {
	if h.Name == "files/install.yaml" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
		return []byte{}
	}
	return content
}
