package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// settings are the flags of the command images, of which artifacts uses some, too.
type settings struct {
	root, registry, tar, version string
	push                         bool     // to the registry; otherwise registry only names the images
	platforms                    []string // of the pushed or released images, such as linux/amd64
}

func parseSettings(args []string, stderr io.Writer) (settings, error) {
	s := settings{}
	var platforms string
	f := flag.NewFlagSet("release images", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.root, "root", filepath.Join("..", ".."), "`folder` of the checkout")
	f.StringVar(&s.registry, "registry", "", "push the images to this `registry` and path")
	f.StringVar(&s.tar, "tar", "", "write the images of this machine's platform to this `file`, for kind load image-archive, ctr and docker load")
	f.StringVar(&s.version, "version", "", "tag of the images (default: appVersion of the chart)")
	f.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "`platforms` of pushed images")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.platforms, s.push = strings.Split(platforms, ","), s.registry != ""
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.registry == "" && s.tar == "":
		return s, errors.New("name a registry (make images REGISTRY=registry.example.com/stoker) or a file (make images TAR=images.tar)")
	}
	for _, p := range s.platforms {
		if system, arch, ok := strings.Cut(p, "/"); !ok || system != "linux" || arch == "" || strings.Contains(arch, "/") {
			return s, fmt.Errorf("--platforms: %q is not a platform such as linux/arm64", p)
		}
	}
	c, err := readChart(s.root)
	if err != nil {
		return s, err
	}
	if s.version == "" {
		s.version = c.AppVersion
	}
	if s.registry == "" {
		s.registry = c.registry
	}
	return s, s.checkNames()
}

// checkNames checks the names of the images before minutes of building.
func (s settings) checkNames() error {
	if strings.Contains(s.registry, "//") || strings.HasSuffix(s.registry, "/") {
		return fmt.Errorf("--registry: %q is not a registry and path such as registry.example.com/stoker, without https:// and without a slash at its end", s.registry)
	}
	for _, p := range programs {
		if _, err := reference(s, p); err != nil {
			return fmt.Errorf("--registry %q, --version %q: %w", s.registry, s.version, err)
		}
	}
	return nil
}

// chart is what the chart says about its images.
type chart struct {
	AppVersion string `json:"appVersion"`
	registry   string // of its default values
}

func readChart(root string) (chart, error) {
	var c chart
	var values struct {
		Image struct {
			Registry string `json:"registry"`
		} `json:"image"`
	}
	dir := filepath.Join(root, "charts", "stoker")
	for file, into := range map[string]any{"Chart.yaml": &c, "values.yaml": &values} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err == nil {
			err = yaml.Unmarshal(raw, into)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", file, err)
		}
	}
	c.registry = values.Image.Registry
	return c, nil
}

// images builds the images of all programs, pushes them to the registry and writes the archive, and prints a line for each.
func images(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parseSettings(args, stderr)
	if err != nil {
		return err
	}
	own := "linux/" + runtime.GOARCH
	var platforms []string
	if s.push {
		platforms = s.platforms
	}
	if s.tar != "" && !slices.Contains(platforms, own) {
		platforms = append([]string{own}, platforms...)
	}
	dir, err := os.MkdirTemp("", "stoker-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	terms, err := licences(ctx, s.root, stderr)
	if err != nil {
		return err
	}
	texts, err := textsOf(s.root, terms)
	if err != nil {
		return err
	}
	built := map[string]map[string]v1.Image{} // by program and platform
	for _, platform := range platforms {
		fmt.Fprintf(stderr, "building for %s …\n", platform)
		if err := build(ctx, s, platform, filepath.Join(dir, platform), programs, stderr); err != nil {
			return err
		}
		for _, p := range programs {
			i, err := newImage(p, s.version, platform, filepath.Join(dir, platform, p.binary), texts)
			if err != nil {
				return fmt.Errorf("image %s for %s: %w", p.image, platform, err)
			}
			if built[p.image] == nil {
				built[p.image] = map[string]v1.Image{}
			}
			built[p.image][platform] = i
		}
	}
	if s.tar != "" {
		if err := writeTar(s, own, built, stdout); err != nil {
			return err
		}
	}
	if !s.push {
		return nil
	}
	for _, p := range programs {
		if err := pushIndex(ctx, s, p, built[p.image], stdout); err != nil {
			return err
		}
	}
	return nil
}

func reference(s settings, p program) (name.Tag, error) {
	return name.NewTag(s.registry + "/" + p.image + ":" + s.version)
}

// writeTar writes the images of one platform in the format of docker save, which every runtime reads.
func writeTar(s settings, platform string, built map[string]map[string]v1.Image, stdout io.Writer) error {
	all := map[name.Reference]v1.Image{}
	for _, p := range programs {
		ref, err := reference(s, p)
		if err != nil {
			return err
		}
		all[ref] = built[p.image][platform]
		fmt.Fprintf(stdout, "%s for %s\n", ref, platform)
	}
	if err := tarball.MultiRefWriteToFile(s.tar, all); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", s.tar, err), os.Remove(s.tar)) // half an archive is of no use
	}
	fmt.Fprintf(stdout, "wrote %s\n", s.tar)
	return nil
}

// pushIndex pushes the images of a program for all platforms under one tag.
func pushIndex(ctx context.Context, s settings, p program, built map[string]v1.Image, stdout io.Writer) error {
	ref, err := reference(s, p)
	if err != nil {
		return err
	}
	index := newIndex(s.platforms, built)
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(ref, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w (log in first: docker login, or a ~/.docker/config.json)", ref, err)
	}
	fmt.Fprintf(stdout, "%s@%s\n", ref, digest)
	return nil
}

// newIndex returns an index of the images of a program for all platforms.
func newIndex(platforms []string, built map[string]v1.Image) v1.ImageIndex {
	index := mutate.IndexMediaType(v1.ImageIndex(empty.Index), types.OCIImageIndex)
	for _, platform := range platforms {
		_, arch, _ := strings.Cut(platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: built[platform], Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

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
