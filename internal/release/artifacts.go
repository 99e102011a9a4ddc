package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"stoker.io/stoker/hooks/bundle"
)

// release is a release while it is made. Each step uses what the steps before it left here.
type release struct {
	settings
	out, key string    // the folder of the release, and the file with the key that signs it or ""
	all      []string  // platforms of the command line, such as windows/amd64
	created  time.Time // of the commit: the time of everything in a release
	stderr   io.Writer

	bin         string  // folder of the programs, with a folder for each platform
	texts       []entry // that come with each program
	store       store
	indexes     map[string]v1.ImageIndex // by image
	digests     map[string]string        // by image
	chartConfig []byte                   // Chart.yaml of the release, as JSON
	archives    []cliArchive
}

// path returns the path of a file of the release. All files are in one folder, because a release page has no folders: each file keeps the
// name that it has in SHA256SUMS.
func (r *release) path(name string) string { return filepath.Join(r.out, name) }

// artifacts makes everything that a release consists of, in a folder.
func artifacts(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	r, err := parseRelease(ctx, args, stderr)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "stoker-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r.bin = filepath.Join(work, "bin")
	if r.store, err = newStore(filepath.Join(work, "layout")); err != nil {
		return err
	}
	if err := r.emptyFolder(); err != nil {
		return err
	}
	to := r.out
	r.out = r.path(unfinished)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"licences", r.findLicences},
		{"programs", r.compile},
		{"lists of modules (SPDX)", func(context.Context) error { return r.writeSBOMs() }},
		{"images", func(context.Context) error { return r.makeImages() }},
		{"chart", func(context.Context) error { return r.makeChart() }},
		{"manifests", func(context.Context) error { return r.writeManifests() }},
		{"archives", r.makeArchives},
		{"krew and Homebrew", func(context.Context) error { return r.describeArchives() }},
		{"sums and bundle", func(context.Context) error { return r.bundle(filepath.Join(work, "layout")) }},
		{"all files", func(context.Context) error { return r.moveTo(to) }},
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(stderr, "%s (%s)\n", step.name, time.Since(began).Round(time.Second))
	}
	return r.list(stdout)
}

func parseRelease(ctx context.Context, args []string, stderr io.Writer) (*release, error) {
	r := &release{stderr: stderr, indexes: map[string]v1.ImageIndex{}, digests: map[string]string{}}
	var platforms string
	f := flag.NewFlagSet("release artifacts", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&r.root, "root", filepath.Join("..", ".."), "`folder` of the checkout")
	f.StringVar(&r.out, "out", filepath.Join("..", "..", "dist"), "`folder` for the artifacts; it must be empty, or an earlier release")
	f.StringVar(&r.version, "version", "", "version of the release (default: appVersion of the chart)")
	f.StringVar(&r.key, "key", "", "`file` with a private key of ECDSA (PEM, PKCS #8) that signs the sums")
	f.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "`platforms` of the command line; those of Linux also for images")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	r.all = strings.Split(platforms, ",")
	for _, p := range r.all {
		system, arch, ok := strings.Cut(p, "/")
		if !ok || !slices.Contains([]string{"linux", "darwin", "windows"}, system) || !slices.Contains([]string{"amd64", "arm64"}, arch) {
			return nil, fmt.Errorf("--platforms: %q is not a platform such as linux/arm64", p)
		}
		if system == "linux" {
			r.platforms = append(r.platforms, p)
		}
	}
	if len(r.platforms) == 0 {
		return nil, errors.New("--platforms: a release has images, so name at least one platform of Linux")
	}
	c, err := readChart(r.root)
	if err != nil {
		return nil, err
	}
	if r.version == "" {
		r.version = c.AppVersion
	}
	r.registry = c.registry
	if r.key != "" {
		if _, err := readKey(r.key); err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
	}
	if r.created, err = commitTime(ctx, r.root); err != nil {
		return nil, err
	}
	return r, r.checkNames()
}

// commitTime returns SOURCE_DATE_EPOCH if it is set, for example outside a clone, and otherwise the time of the commit.
func commitTime(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		cmd := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct")
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the time of the commit (git log; or set SOURCE_DATE_EPOCH): %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the time of the commit: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// unfinished is the folder with the files of a release that is not complete.
const unfinished = ".stoker-release"

// moveTo moves the files of the release to their folder in the order of their names. SHA256SUMS comes first, so that emptyFolder knows the others,
// also if moveTo is interrupted.
func (r *release) moveTo(out string) error {
	names, err := readNames(r.out)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(r.path(name), filepath.Join(out, name)); err != nil {
			return err
		}
	}
	err = os.Remove(r.out)
	r.out = out
	return err
}

// emptyFolder makes the folder of the release, and removes what an earlier release wrote there. If there is any other file, it fails and removes
// nothing.
func (r *release) emptyFolder() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	earlier, err := os.ReadFile(r.path(bundle.Sums))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	own := map[string]bool{bundle.Sums: true, bundle.Signature: true}
	for line := range strings.Lines(string(earlier)) {
		if _, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  "); ok {
			own[name] = true
		}
	}
	found, err := readNames(r.out)
	if err != nil {
		return err
	}
	for _, name := range found {
		if !own[name] && !strings.HasPrefix(name, unfinished+"/") {
			return fmt.Errorf("%s is not of an earlier release: name another folder", r.path(name))
		}
	}
	slices.Reverse(found) // SHA256SUMS last: it names the others
	for _, name := range found {
		if err := os.Remove(r.path(name)); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) findLicences(ctx context.Context) error {
	terms, err := licences(ctx, r.root, r.stderr)
	if err != nil {
		return err
	}
	r.texts, err = textsOf(r.root, terms)
	return err
}

// compile builds for each platform what exists there: the command line everywhere, the agent on Linux and macOS, the others on Linux.
func (r *release) compile(ctx context.Context) error {
	own := runtime.GOOS + "/" + runtime.GOARCH
	for _, platform := range r.all {
		if err := build(ctx, r.settings, platform, filepath.Join(r.bin, platform), programsOn(platform), r.stderr); err != nil {
			return err
		}
	}
	if slices.Contains(r.all, own) {
		return nil
	}
	return build(ctx, r.settings, own, filepath.Join(r.bin, own), []program{cliProgram}, r.stderr) // makeArchives runs it to write the manual
}

func programsOn(platform string) []program {
	switch system, _, _ := strings.Cut(platform, "/"); system {
	case "linux":
		return programs
	case "darwin":
		return []program{cliProgram, agentProgram}
	}
	return []program{cliProgram}
}

// binary returns the file of a program for a platform.
func (r *release) binary(platform string, p program) string {
	return filepath.Join(r.bin, platform, executable(platform, p))
}

func executable(platform string, p program) string {
	if strings.HasPrefix(platform, "windows/") {
		return p.binary + ".exe"
	}
	return p.binary
}

func (r *release) writeSBOMs() error {
	for _, platform := range r.all {
		for _, p := range programsOn(platform) {
			document, err := newSBOM(r.binary(platform, p), r.version, platform, r.created)
			if err != nil {
				return err
			}
			if err := os.WriteFile(r.path(sbomName(platform, p)), document, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func sbomName(platform string, p program) string {
	return p.binary + "_" + strings.ReplaceAll(platform, "/", "_") + ".spdx.json"
}

func (r *release) makeImages() error {
	for _, p := range programs {
		built := map[string]v1.Image{}
		for _, platform := range r.platforms {
			i, err := newImage(p, r.version, platform, r.binary(platform, p), r.texts)
			if err != nil {
				return err
			}
			built[platform] = i
		}
		index := newIndex(r.platforms, built)
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		r.indexes[p.image], r.digests[p.image] = index, digest.String()
		if err := r.store.addImage(r.registry+"/"+p.image+":"+r.version, index); err != nil {
			return err
		}
	}
	return r.attachSBOMs()
}

func (r *release) attachSBOMs() error {
	for _, p := range programs {
		list, err := r.indexes[p.image].IndexManifest()
		if err != nil {
			return err
		}
		for i, platform := range r.platforms {
			document, err := os.ReadFile(r.path(sbomName(platform, p)))
			if err != nil {
				return err
			}
			if err := r.store.addSBOM(list.Manifests[i], document); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *release) addChart() error {
	chart, err := os.ReadFile(r.path(r.chartFile()))
	if err != nil {
		return err
	}
	return r.store.addChart(r.chartConfig, chart, map[string]string{
		"org.opencontainers.image.title": "stoker", "org.opencontainers.image.version": r.version, "org.opencontainers.image.created": r.created.Format(time.RFC3339),
		"org.opencontainers.image.source": labels["org.opencontainers.image.source"],
	})
}

// bundle writes SHA256SUMS, and the archive for sites without a network: all files of the release, the docs, and the layout with the images.
func (r *release) bundle(layout string) error {
	files := map[string]string{}
	found, err := readNames(r.out)
	if err != nil {
		return err
	}
	for _, name := range found {
		files[bundle.Files+name] = r.path(name)
	}
	pages, err := readNames(filepath.Join(r.root, "docs"))
	if err != nil {
		return err
	}
	for _, name := range pages {
		if filepath.Ext(name) == ".md" || filepath.Ext(name) == ".png" {
			files[bundle.Files+"docs/"+name] = filepath.Join(r.root, "docs", filepath.FromSlash(name))
		}
	}
	blobs, err := readNames(layout)
	if err != nil {
		return err
	}
	for _, name := range blobs {
		files[name] = filepath.Join(layout, filepath.FromSlash(name))
	}
	within := filepath.Join(layout, bundle.Sums)
	if err := r.writeSums(within, files); err != nil {
		return err
	}
	files[bundle.Sums] = within
	if r.key != "" {
		files[bundle.Signature] = within + ".sigstore.json"
	}
	name := "stoker-" + r.version + "-bundle.tar"
	if err := writeBundle(r.path(name), files, r.created); err != nil {
		return err
	}
	all := map[string]string{name: r.path(name)}
	for _, n := range found {
		all[n] = r.path(n)
	}
	return r.writeSums(r.path(bundle.Sums), all)
}

// writeSums writes the sums of all files but blobs, whose names are their sums. If there is a key, it also signs the sums.
func (r *release) writeSums(to string, files map[string]string) error {
	names := make([]string, 0, len(files))
	for name := range files {
		if !strings.HasPrefix(name, "blobs/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b bytes.Buffer
	for _, name := range names {
		sum, err := sumOf(files[name])
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	if err := os.WriteFile(to, b.Bytes(), 0o644); err != nil || r.key == "" {
		return err
	}
	return signFile(r.key, to, to+".sigstore.json")
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// list prints the artifacts and the digests of the images.
func (r *release) list(stdout io.Writer) error {
	names, err := readNames(r.out)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := os.Stat(r.path(name))
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%8.1f MB  %s\n", float64(info.Size())/1e6, name)
	}
	for _, p := range programs {
		fmt.Fprintf(stdout, "%s/%s:%s@%s\n", r.registry, p.image, r.version, r.digests[p.image])
	}
	return nil
}

// reproduce makes the release of the current commit from two clones in two folders, and compares the sums of all artifacts.
func reproduce(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	work, err := os.MkdirTemp("", "stoker-reproduce-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	build := func(name string) ([]byte, error) {
		clone, out := filepath.Join(work, name), filepath.Join(work, "out", name)
		cmd := exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-hardlinks", top, clone)
		cmd.Stderr = stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("git clone: %w", err)
		}
		if err := artifacts(ctx, append(slices.Clone(args), "--root", clone, "--out", out), io.Discard, stderr); err != nil {
			return nil, err
		}
		return os.ReadFile(filepath.Join(out, bundle.Sums))
	}
	first, err := build("one")
	if err != nil {
		return err
	}
	second, err := build(filepath.Join("another", "folder"))
	if err != nil {
		return err
	}
	if !bytes.Equal(first, second) {
		return fmt.Errorf("two builds of one commit differ in: %s", strings.Join(different(first, second), ", "))
	}
	_, err = stdout.Write(first)
	return err
}

// different returns the names of the files whose sums are not the same.
func different(a, b []byte) (names []string) {
	other := strings.Split(string(b), "\n")
	for line := range strings.Lines(string(a)) {
		line = strings.TrimSuffix(line, "\n")
		if _, name, ok := strings.Cut(line, "  "); ok && !slices.Contains(other, line) {
			names = append(names, name)
		}
	}
	return names
}
