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
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// program is a program with an image of its own.
type program struct{ image, folder, binary string }

var (
	agentProgram = program{"agent", "agent", "agent"}
	cliProgram   = program{"hooks", "hooks", "stoker"}

	// programs are the targets of the Dockerfile, too.
	programs = []program{agentProgram, {"injector", "injector", "injector"}, {"receiver", "receiver", "receiver"}, cliProgram}
)

// user is the user of every image: a number, so that a kubelet can check runAsNonRoot.
const user = "65532:65532"

var labels = map[string]string{
	"org.opencontainers.image.source":   "https://github.com/stoker-io/stoker",
	"org.opencontainers.image.licenses": "Apache-2.0",
}

// build compiles programs for a platform into dir. The same commit gives the same bytes in every folder.
func build(ctx context.Context, s settings, platform, dir string, which []program, stderr io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	system, arch, _ := strings.Cut(platform, "/")
	for _, p := range which {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+s.version,
			"-o", filepath.Join(dir, executable(platform, p)), "./"+p.folder)
		cmd.Dir, cmd.Stderr = s.root, stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch, "GOFLAGS=", "GOWORK=off")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go build ./%s for %s: %w", p.folder, platform, err)
		}
	}
	return nil
}

// newImage returns an image with a program, texts about it, /etc and /tmp, and nothing else: the programs embed certificates and time zones.
func newImage(p program, version, platform, file string, texts []entry) (v1.Image, error) {
	layer, err := newLayer("/"+p.binary, file, texts)
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
func newLayer(path, file string, texts []entry) (v1.Layer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}, {Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}} {
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	files := append([]entry{{strings.TrimPrefix(path, "/"), content, 0o755}}, texts...)
	if err := writeTarEntries(w, files, time.Unix(0, 0)); err != nil {
		return nil, err
	}
	raw := b.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }, tarball.WithMediaType(types.OCILayer))
}
