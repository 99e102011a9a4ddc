package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// program is a program with an image of its own.
type program struct{ image, folder, binary string }

// programs are the targets of the Dockerfile, too.
var programs = []program{
	{"agent", "agent", "agent"}, {"injector", "injector", "injector"}, {"receiver", "receiver", "receiver"}, {"hooks", "hooks", "stoker"},
}

// user is the user of every image: a number, so that a kubelet can check runAsNonRoot.
const user = "65532:65532"

var labels = map[string]string{
	"org.opencontainers.image.source":   "https://github.com/stoker-io/stoker",
	"org.opencontainers.image.licenses": "Apache-2.0",
}

// build compiles all programs for a platform into dir. The same commit gives the same bytes in every folder.
func build(ctx context.Context, s settings, platform, dir string, stderr io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, arch, _ := strings.Cut(platform, "/")
	for _, p := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+s.version,
			"-o", filepath.Join(dir, p.binary), "./"+p.folder)
		cmd.Dir, cmd.Stderr = s.root, stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOWORK=off")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go build ./%s for %s: %w", p.folder, platform, err)
		}
	}
	return nil
}

// newImage returns an image with a program, /etc and /tmp, and nothing else: the programs embed certificates and time zones.
func newImage(p program, version, platform, file string) (v1.Image, error) {
	layer, err := newLayer("/"+p.binary, file)
	if err != nil {
		return nil, err
	}
	i, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	c, err := i.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	_, c.Architecture, _ = strings.Cut(platform, "/")
	c.OS = "linux"
	c.Config.Entrypoint, c.Config.User, c.Config.WorkingDir = []string{"/" + p.binary}, user, "/"
	c.Config.Env = []string{"PATH=/"}
	c.Config.Labels = map[string]string{"org.opencontainers.image.version": version}
	for name, value := range labels {
		c.Config.Labels[name] = value
	}
	return mutate.ConfigFile(i, c)
}

// newLayer returns a layer with a file and the directories that a container needs. All times are 1970, so that the same file gives the same layer.
func newLayer(path, file string) (v1.Layer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content))},
	} {
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(content); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	raw := b.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }, tarball.WithMediaType(types.OCILayer))
}
