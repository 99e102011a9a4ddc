package build

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/test/cluster/image"
)

// Images on every node.
const (
	PauseImage   = "registry.local/pause:dev"
	CoreDNSImage = "registry.local/coredns:dev"
	BusyboxImage = "registry.local/busybox:dev"
)

// Images returns the archives of the images that every node needs for running pods, and a busybox for init containers.
func (c *Cache) Images(ctx context.Context) ([]string, error) {
	pause, err := c.pauseImage(ctx)
	if err != nil {
		return nil, err
	}
	dns, err := c.dnsImage(ctx)
	if err != nil {
		return nil, err
	}
	box, err := c.busyboxImage(ctx)
	return []string{pause, dns, box}, err
}

func (c *Cache) pauseImage(ctx context.Context) (string, error) {
	key, err := c.key([]string{PauseImage}, filepath.Join(c.SourceDir, "test", "cluster", "pause", "main.go"))
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "pause", key, func(dir string) error {
		binary := filepath.Join(dir, "pause")
		if err := c.Main(ctx, "./test/cluster/pause", binary); err != nil {
			return err
		}
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{
			Ref: PauseImage, Entrypoint: []string{"/pause"}, Files: []image.File{{Path: "/pause", From: binary}},
		})
	})
	return filepath.Join(dir, "image.tar"), err
}

func (c *Cache) dnsImage(ctx context.Context) (string, error) {
	binary, err := c.coreDNS(ctx)
	if err != nil {
		return "", err
	}
	key, err := c.key([]string{CoreDNSImage, binary})
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "corednsimage", key, func(dir string) error {
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{
			Ref: CoreDNSImage, Entrypoint: []string{"/coredns"}, Files: []image.File{{Path: "/coredns", From: binary}},
		})
	})
	return filepath.Join(dir, "image.tar"), err
}

// applets are the commands of the busybox image.
var applets = []string{
	"sh", "awk", "cat", "chmod", "chown", "cp", "date", "dd", "df", "du", "echo", "env", "false", "find", "grep", "head", "hostname", "id", "ip",
	"kill", "ln", "ls", "mkdir", "mount", "mv", "nc", "nslookup", "ping", "printf", "ps", "rm", "rmdir", "sed", "sha256sum", "sleep", "sort",
	"stat", "sync", "tail", "tar", "test", "timeout", "touch", "tr", "true", "wc", "wget", "xargs",
}

// busyboxImage wraps the machine's static busybox.
func (c *Cache) busyboxImage(ctx context.Context) (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w: install the package busybox-static", err)
	}
	dynamic, err := isDynamic(busybox)
	if err != nil {
		return "", err
	}
	if dynamic {
		return "", errors.New(busybox + " needs libraries: install the package busybox-static in its place")
	}
	key, err := c.key(append([]string{BusyboxImage}, applets...), busybox)
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, "busybox", key, func(dir string) error {
		files := []image.File{{Path: "/bin/busybox", From: busybox}}
		for _, name := range applets {
			files = append(files, image.File{Path: "/bin/" + name, Link: "busybox"})
		}
		passwd := "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
		files = append(files, image.File{Path: "/etc/passwd", Content: []byte(passwd), Mode: 0o644})
		return image.Write(filepath.Join(dir, "image.tar"), image.Image{Ref: BusyboxImage, Cmd: []string{"/bin/sh"}, Files: files})
	})
	return filepath.Join(dir, "image.tar"), err
}

// isDynamic reports whether a program needs a dynamic loader, without which it cannot start in an otherwise empty image.
func isDynamic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	dynamic := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	return dynamic, f.Close()
}

// ProgramImage wraps a static program as an image. The program is the entrypoint, unless the image names one.
func ProgramImage(program, to string, i image.Image) error {
	name := "/" + filepath.Base(program)
	i.Files = append([]image.File{{Path: name, From: program}}, i.Files...)
	if len(i.Entrypoint) == 0 {
		i.Entrypoint = []string{name}
	}
	return image.Write(to, i)
}

// argoCD is a release of Argo CD, and the nested module below test that requires it.
type argoCD struct{ nested, module, version string }

// argoCDs are the tested releases by major version: the oldest that docs/how-to/argocd.md supports, and the newest that
// builds.
var argoCDs = map[string]argoCD{
	"2": {nested: "argocd", module: "github.com/argoproj/argo-cd/v2", version: "2.14.21"},
	"3": {nested: "argocd/v3", module: "github.com/argoproj/argo-cd/v3", version: "3.6.1"},
}

// argoCDCommands are the names under which the single binary is called.
var argoCDCommands = []string{"argocd-application-controller", "argocd-notifications", "argocd-repo-server", "argocd-server"}

// verifyWrapper is a script of Argo CD that is in the PATH of its image. The repository server of Argo CD 3.5 and newer calls it for every
// commit, also when no signature is asked for, and reports "permission denied" if there is none.
const verifyWrapper = "git-verify-wrapper.sh"

// ArgoCD returns a directory with the commands of Argo CD 2 or 3, and its CRDs in crds.
func (c *Cache) ArgoCD(ctx context.Context, major string) (string, error) {
	release, known := argoCDs[major]
	if !known {
		return "", fmt.Errorf("unknown major version %q of Argo CD: the versions are %s", major, slices.Sorted(maps.Keys(argoCDs)))
	}
	binary, err := c.buildNested(ctx, release.nested, release.module+"/cmd", "-s -w -X "+release.module+"/common.version="+release.version)
	if err != nil {
		return "", err
	}
	key, err := c.key(append([]string{binary, verifyWrapper}, argoCDCommands...))
	if err != nil {
		return "", err
	}
	return c.buildOnce(ctx, "argocdcommands", key, func(dir string) error {
		for _, name := range append([]string{"argocd"}, argoCDCommands...) {
			if err := os.Symlink(binary, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		source, err := c.moduleDir(ctx, filepath.Join("test", release.nested), release.module)
		if err != nil {
			return err
		}
		script, err := os.ReadFile(filepath.Join(source, "hack", verifyWrapper))
		if err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile(filepath.Join(dir, verifyWrapper), script, 0o755),
			copyFiles(filepath.Join(source, "manifests", "crds"), filepath.Join(dir, "crds")),
		)
	})
}

// Kustomize returns the path of kustomize, which Argo CD calls for directories with a kustomization.
func (c *Cache) Kustomize(ctx context.Context) (string, error) {
	return c.buildNested(ctx, "argocd/kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "-s -w")
}

// moduleDir returns the directory of a module that a nested module requires.
func (c *Cache) moduleDir(ctx context.Context, nested, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir, cmd.Env = filepath.Join(c.SourceDir, nested), nestedEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("directory of module %s: %w: %s", module, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// copyFiles copies the files of a directory, without subdirectories.
func copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	errs := []error{os.MkdirAll(to, 0o755)}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, e.Name()))
		errs = append(errs, err, os.WriteFile(filepath.Join(to, e.Name()), content, 0o644))
	}
	return errors.Join(errs...)
}
