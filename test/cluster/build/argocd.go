package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

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
