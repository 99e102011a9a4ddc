package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/hooks/bundle"
)

// smallBundle writes a bundle with one image and one file.
func smallBundle(t *testing.T) (name, image string) {
	t.Helper()
	config := []byte("{}")
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []ocispec.Descriptor{},
	})
	require.NoError(t, err)
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest)),
		Annotations: map[string]string{ocispec.AnnotationRefName: "registry.example.com/stoker/agent:1.2.3"},
	}}})
	require.NoError(t, err)
	return writeBundle(t, map[string][]byte{
		"index.json": index, "blobs/sha256/" + digest.FromBytes(manifest).Encoded(): manifest, "blobs/sha256/" + digest.FromBytes(config).Encoded(): config,
		"files/README.md": []byte("read"),
	}), digest.FromBytes(manifest).String()
}

func writeBundle(t *testing.T, files map[string][]byte) (name string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	// setup: the archive
	for name, content := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(content))}))
		_, err := w.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	name = filepath.Join(t.TempDir(), "bundle.tar")
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	return name
}

// A descriptor without a valid SHA-256 digest is reported.
func TestBundleDigest(t *testing.T) {
	for name, index := range map[string]string{
		"no digest":        `{"manifests":[{}]}`,
		"SHA-512":          `{"manifests":[{"digest":"sha512:00","size":1}]}`,
		"path as a digest": `{"manifests":[{"digest":"sha256:../index.json","size":1}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := writeBundle(t, map[string][]byte{"index.json": []byte(index)})
			var stdout, stderr bytes.Buffer
			assert.NotZero(t, run(t.Context(), []string{"stoker", "bundle", "list", file}, &stdout, &stderr))
			assert.Contains(t, stderr.String(), "is not in the bundle")
		})
	}
}

// Each format lists the images and the files.
func TestBundleList(t *testing.T) {
	name, image := smallBundle(t)
	for format, want := range map[string][]string{
		"table": {"agent:1.2.3 ", image, "README.md "},
		"name":  {"agent:1.2.3\n", "README.md\n"},
		"json":  {`"name": "agent"`, image, `"name": "README.md"`, `"size": 4`},
		"yaml":  {"name: agent\n", image, "name: README.md\n", "size: 4\n"},
	} {
		t.Run(format, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := []string{"stoker", "bundle", "list", name}
			if format != "table" {
				args = append(args, "-o", format)
			}
			require.Zero(t, run(t.Context(), args, &stdout, &stderr), "%s", &stderr)
			for _, text := range want {
				assert.Contains(t, stdout.String(), text)
			}
		})
	}
}

// An image with two tags is listed with the same size and the same referrers for each.
func TestBundleListTags(t *testing.T) {
	config := []byte("{}")
	describe := func(subject *ocispec.Descriptor) (ocispec.Descriptor, []byte) {
		manifest, err := json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Subject: subject,
			Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		})
		require.NoError(t, err)
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}, manifest
	}
	image, manifest := describe(nil)
	signature, signed := describe(&image)
	tagged := func(ref string) ocispec.Descriptor {
		d := image
		d.Annotations = map[string]string{ocispec.AnnotationRefName: "registry.example.com/stoker/" + ref}
		return d
	}
	index, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{tagged("agent:1.2.3"), tagged("agent:1.2"), signature}})
	require.NoError(t, err)
	files := map[string][]byte{"index.json": index}
	for _, content := range [][]byte{config, manifest, signed} {
		files["blobs/sha256/"+digest.FromBytes(content).Encoded()] = content
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"stoker", "bundle", "list", writeBundle(t, files), "-o", "json"}, &stdout, &stderr), "%s", &stderr)
	var list struct{ Images []bundle.Image }
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &list))
	want := bundle.Image{Name: "agent", Tag: "1.2.3", Digest: image.Digest, Size: int64(len(manifest) + len(config)), Referrers: 1}
	other := want
	other.Tag = "1.2"
	assert.Equal(t, []bundle.Image{want, other}, list.Images)
}
