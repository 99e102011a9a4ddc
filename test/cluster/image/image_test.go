package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/image"
)

type entry struct {
	tar.Header
	content []byte
}

func entries(t *testing.T, archive []byte) (names []string, all map[string]entry) {
	all = map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, all
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NotContains(t, all, h.Name, "the archive must not contain a name twice")
		names = append(names, h.Name)
		all[h.Name] = entry{*h, content}
	}
}

type descriptor struct {
	Digest      string
	Size        int
	Annotations map[string]string
}

// blob returns the content of a descriptor and checks its digest.
func blob(t *testing.T, all map[string]entry, d descriptor) []byte {
	sum, ok := strings.CutPrefix(d.Digest, "sha256:")
	require.True(t, ok, d.Digest)
	content := all["blobs/sha256/"+sum].content
	require.Len(t, content, d.Size)
	got := sha256.Sum256(content)
	assert.Equal(t, sum, hex.EncodeToString(got[:]))
	return content
}

func TestImageArchive(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(program, []byte("binary"), 0o600))
	spec := image.Image{
		Ref: "registry.local/a/agent:dev", Entrypoint: []string{"/bin/agent"}, Cmd: []string{"--help"}, Env: []string{"A=b"}, User: "2003:2003", WorkingDir: "/data",
		Files: []image.File{
			{Path: "/bin/agent", From: program},
			{Path: "/bin/link", Link: "agent"},
			{Path: "/data", Mode: fs.ModeDir | 0o750, UID: 2003, GID: 2003},
			{Path: "/data/seed", Content: []byte("seed"), Mode: 0o600, UID: 2003, GID: 2003},
		},
	}
	to := filepath.Join(dir, "image.tar")
	require.NoError(t, image.Write(to, spec))
	archive, err := os.ReadFile(to)
	require.NoError(t, err)
	names, all := entries(t, archive)
	assert.Equal(t, []string{"oci-layout", "index.json", "manifest.json"}, names[:3])
	assert.NoFileExists(t, to+".layer")

	var index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(all["index.json"].content, &index))
	require.Len(t, index.Manifests, 1)
	assert.Equal(t, "registry.local/a/agent:dev", index.Manifests[0].Annotations["io.containerd.image.name"])
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	require.NoError(t, json.Unmarshal(blob(t, all, index.Manifests[0]), &manifest))
	require.Len(t, manifest.Layers, 1)
	var config struct {
		Config struct {
			Entrypoint, Cmd, Env []string
			User, WorkingDir     string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	require.NoError(t, json.Unmarshal(blob(t, all, manifest.Config), &config))
	assert.Equal(t, spec.Entrypoint, config.Config.Entrypoint)
	assert.Equal(t, spec.Cmd, config.Config.Cmd)
	assert.Equal(t, "2003:2003", config.Config.User)
	assert.Equal(t, "/data", config.Config.WorkingDir)
	assert.Contains(t, config.Config.Env, "A=b")
	assert.Equal(t, []string{manifest.Layers[0].Digest}, config.Rootfs.DiffIDs)

	names, layer := entries(t, blob(t, all, manifest.Layers[0]))
	assert.Equal(t, []string{"bin/", "bin/agent", "bin/link", "data/", "data/seed", "etc/", "tmp/"}, names)
	assert.Equal(t, "binary", string(layer["bin/agent"].content))
	assert.EqualValues(t, 0o755, layer["bin/agent"].Mode)
	assert.Equal(t, "agent", layer["bin/link"].Linkname)
	assert.EqualValues(t, 0o750, layer["data/"].Mode)
	assert.Equal(t, 2003, layer["data/"].Uid)
	assert.EqualValues(t, 0o600, layer["data/seed"].Mode)
	assert.Equal(t, 2003, layer["data/seed"].Gid)
	assert.EqualValues(t, 0o1777, layer["tmp/"].Mode)

	again := filepath.Join(dir, "again.tar")
	require.NoError(t, image.Write(again, spec))
	same, err := os.ReadFile(again)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(archive, same), "the archive must be reproducible")
}

func TestInvalidImage(t *testing.T) {
	to := filepath.Join(t.TempDir(), "image.tar")
	for _, ref := range []string{"", "agent", "registry.local:5000/agent", "registry.local/:dev", "agent:"} {
		t.Run(ref, func(t *testing.T) {
			assert.ErrorContains(t, image.Write(to, image.Image{Ref: ref}), "want a name and a tag", ref)
		})
	}
	err := image.Write(to, image.Image{Ref: "a:b", Files: []image.File{{Path: "/x", From: "missing"}}})
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "image a:b: /x")
	assert.NoFileExists(t, to+".layer")
}

func TestLayerEntries(t *testing.T) {
	write := func(files ...image.File) (map[string]entry, error) {
		to := filepath.Join(t.TempDir(), "image.tar")
		if err := image.Write(to, image.Image{Ref: "a:b", Files: files}); err != nil {
			return nil, err
		}
		archive, err := os.ReadFile(to)
		require.NoError(t, err)
		_, all := entries(t, archive)
		var manifests []struct{ Layers []string }
		require.NoError(t, json.Unmarshal(all["manifest.json"].content, &manifests))
		_, layer := entries(t, all[manifests[0].Layers[0]].content)
		return layer, nil
	}
	t.Run("special mode bits", func(t *testing.T) {
		layer, err := write(image.File{Path: "/su", Mode: fs.ModeSetuid | 0o755}, image.File{Path: "/d", Mode: fs.ModeDir | fs.ModeSetgid | 0o770})
		require.NoError(t, err)
		assert.EqualValues(t, 0o4755, layer["su"].Mode)
		assert.EqualValues(t, 0o2770, layer["d/"].Mode)
	})
	t.Run("duplicate path", func(t *testing.T) {
		_, err := write(image.File{Path: "/a"}, image.File{Path: "a"})
		assert.ErrorContains(t, err, "twice")
	})
	t.Run("link instead of a default directory", func(t *testing.T) {
		layer, err := write(image.File{Path: "/tmp", Link: "var"})
		require.NoError(t, err)
		assert.Equal(t, "var", layer["tmp"].Linkname)
		assert.NotContains(t, layer, "tmp/")
	})
}
