package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	refName        = "org.opencontainers.image.ref.name"
	typeChart      = "application/vnd.cncf.helm.config.v1+json"
	typeChartLayer = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	typeSPDX       = "application/spdx+json"
	typeEmpty      = "application/vnd.oci.empty.v1+json"
)

// store is an OCI image layout.
type store struct{ path layout.Path }

func newStore(dir string) (store, error) {
	p, err := layout.Write(dir, empty.Index)
	return store{p}, err
}

// addImage adds an image for several platforms under a name such as ghcr.io/stoker-io/agent:0.1.0.
func (s store) addImage(name string, index v1.ImageIndex) error {
	return s.path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: name}))
}

// artifact is a manifest for something else than an image (https://github.com/opencontainers/image-spec, "Guidelines for Artifact Usage").
type artifact struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     types.MediaType   `json:"mediaType"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        v1.Descriptor     `json:"config"`
	Layers        []v1.Descriptor   `json:"layers"`
	Subject       *v1.Descriptor    `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

func (s store) blob(content []byte, mediaType types.MediaType) (v1.Descriptor, error) {
	hash, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: mediaType, Size: size, Digest: hash}, s.path.WriteBlob(hash, io.NopCloser(bytes.NewReader(content)))
}

func (s store) add(a artifact, config, layer []byte, configType, layerType types.MediaType) (err error) {
	if a.Config, err = s.blob(config, configType); err != nil {
		return err
	}
	content, err := s.blob(layer, layerType)
	if err != nil {
		return err
	}
	a.SchemaVersion, a.MediaType, a.Layers = 2, types.OCIManifestSchema1, []v1.Descriptor{content}
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	d, err := s.blob(raw, a.MediaType)
	if err != nil {
		return err
	}
	d.ArtifactType, d.Annotations = a.ArtifactType, a.Annotations
	return s.path.AppendDescriptor(d)
}

// addChart adds the packed chart, as helm push does. The index has its title and version and no ref name, because runtimes that import the
// layout unpack whatever has one.
func (s store) addChart(config, chart []byte, annotations map[string]string) error {
	return s.add(artifact{Annotations: annotations}, config, chart, typeChart, typeChartLayer)
}

// addSBOM attaches a document to an image.
func (s store) addSBOM(image v1.Descriptor, document []byte) error {
	subject := v1.Descriptor{MediaType: image.MediaType, Size: image.Size, Digest: image.Digest}
	return s.add(artifact{ArtifactType: typeSPDX, Subject: &subject}, []byte("{}"), document, typeEmpty, typeSPDX)
}

// writeBundle writes an archive. files maps names in it to files on the disk.
func writeBundle(to string, files map[string]string, at time.Time) (err error) {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	t := tar.NewWriter(out)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	// The files of the release come last, because some programs read the archive in one pass and need the image layout first.
	slices.SortFunc(names, func(a, b string) int {
		if la, lb := strings.HasPrefix(a, "files/"), strings.HasPrefix(b, "files/"); la != lb {
			if lb {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		if err = appendFile(t, name, files[name], at); err != nil {
			break
		}
	}
	for _, end := range []func() error{t.Close, out.Close} {
		if e := end(); err == nil {
			err = e
		}
	}
	return err
}

func appendFile(t *tar.Writer, name, file string, at time.Time) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(content)), ModTime: at, Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = t.Write(content)
	return err
}
