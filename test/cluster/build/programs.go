package build

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/cluster/process"
)

// DefaultKubernetes is the newest version, which is that of kubernetes/go.mod. OldestKubernetes is a release of the oldest version that the
// chart accepts.
const (
	DefaultKubernetes = "v1.37.2"
	OldestKubernetes  = "v1.30.14"
)

// VersionVariable is the environment variable that selects another version for tests.
const VersionVariable = "STOKER_KUBERNETES"

// kubernetesMods maps the available versions to their module files.
var kubernetesMods = map[string]string{
	DefaultKubernetes: "go.mod",
	OldestKubernetes:  OldestKubernetes + ".mod",
}

// KubernetesVersions lists the available versions.
func KubernetesVersions() []string {
	return slices.Sorted(maps.Keys(kubernetesMods))
}

// kubernetesCommands are the names under which the single binary is called.
var kubernetesCommands = []string{
	"etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
}

// Kubernetes returns a directory with etcd and the commands of Kubernetes; "" is the default version.
func (c *Cache) Kubernetes(ctx context.Context, version string) (string, error) {
	if version == "" {
		version = DefaultKubernetes
	}
	mod, ok := kubernetesMods[version]
	if !ok {
		return "", fmt.Errorf("kubernetes %q has no module file in test/cluster/kubernetes; there are %q", version, KubernetesVersions())
	}
	source := filepath.Join(c.SourceDir, "test", "cluster", "kubernetes")
	modFile := filepath.Join(source, mod)
	tags := "notest,grpcnotrace"
	if version == OldestKubernetes {
		tags += ",oldest"
	}
	flags := []string{"-modfile=" + modFile, "-tags=" + tags, "-ldflags=" + kubernetesLDFlags(version)}
	key, err := c.key(flags[1:], modFile, strings.TrimSuffix(modFile, ".mod")+".sum", filepath.Join(source, "main.go"),
		filepath.Join(source, "kubelet.go"), filepath.Join(source, "kubelet_oldest.go"))
	if err != nil {
		return "", err
	}
	return c.buildOnce(ctx, "kubernetes-"+version, key, func(dir string) error {
		binary := filepath.Join(dir, "kubernetes")
		if err := c.goBuild(ctx, "Kubernetes "+version, source, append(flags, "-o", binary, ".")...); err != nil {
			return err
		}
		for _, name := range kubernetesCommands {
			if err := os.Symlink("kubernetes", filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// kubernetesLDFlags returns linker flags that set the version. Without them the servers report v0.0.0, but clients
// and feature gates depend on the version.
func kubernetesLDFlags(version string) string {
	flags := []string{"-s", "-w"}
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, set := range []string{
			"gitVersion=" + version, "gitMajor=1", "gitMinor=" + minor, "gitTreeState=clean", "gitCommit=module",
			"buildDate=1970-01-01T00:00:00Z",
		} {
			flags = append(flags, "-X", pkg+"."+set)
		}
	}
	return strings.Join(flags, " ")
}

// coreDNS returns the path of the cluster's DNS server.
func (c *Cache) coreDNS(ctx context.Context) (string, error) {
	return c.buildNested(ctx, "cluster/coredns", ".", "-s -w")
}

// Kind returns the path of kind, which makes clusters of containers.
func (c *Cache) Kind(ctx context.Context) (string, error) {
	return c.buildNested(ctx, "cluster/kind", ".", "-s -w")
}

// buildNested builds a program of a nested module below test: its own, or one that it requires.
func (c *Cache) buildNested(ctx context.Context, module, pkg, linking string) (string, error) {
	name, source := filepath.Base(module), filepath.Join(c.SourceDir, "test", module)
	files := []string{filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")}
	if pkg == "." {
		files = append(files, filepath.Join(source, "main.go"))
	}
	key, err := c.key([]string{pkg, linking}, files...)
	if err != nil {
		return "", err
	}
	dir, err := c.buildOnce(ctx, name, key, func(dir string) error {
		return c.goBuild(ctx, name, source, "-ldflags="+linking, "-o", filepath.Join(dir, name), pkg)
	})
	return filepath.Join(dir, name), err
}

// Main builds a main package of this module, such as "./agent", statically to a path. Go's own cache makes repeated
// builds fast.
func (c *Cache) Main(ctx context.Context, pkg, to string) error {
	return c.goBuild(ctx, pkg, c.SourceDir, "-ldflags=-s -w", "-o", to, pkg)
}

// buildTimeout is the timeout of one go build. A first build of Kubernetes takes minutes on two idle cores.
const buildTimeout = time.Hour

// goBuild builds a static program, with progress messages.
func (c *Cache) goBuild(ctx context.Context, what, dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	var output strings.Builder
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(nestedEnv(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = &output, &output
	// The compilers are in its process group and end with it. The build itself ends with this process, because the
	// kernel ties it to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = process.TiedToThread()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			took := time.Since(began).Round(time.Second)
			if err != nil {
				return fmt.Errorf("build %s: %w after %s\n%s", what, err, took, lastOutput(output.String()))
			}
			if took >= 15*time.Second {
				fmt.Fprintf(c.Progress, "built %s in %s\n", what, took)
			}
			return nil
		case <-ticker.C:
			fmt.Fprintf(c.Progress, "building %s … %s (once for each version; it is kept)\n", what, time.Since(began).Round(time.Second))
		}
	}
}

// nestedEnv is the environment of go commands in nested modules. Some of these modules need a newer Go than the rest of the project;
// an older go command downloads it as a module.
func nestedEnv() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOTOOLCHAIN=auto")
}

// lastOutput returns the last 4000 bytes of a build's output.
func lastOutput(output string) string {
	return strings.TrimSpace(output[max(0, len(output)-4000):])
}
