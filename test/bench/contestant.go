package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"stoker.io/stoker/test/gitserver"
)

// contestant is a way to bring a branch to a directory.
type contestant interface {
	name() string
	// can says whether a case means anything for this contestant.
	can(c benchCase) bool
	// reset makes the workspace empty; untimed.
	reset(ctx context.Context) error
	// lose destroys what a case wants lost, of a workspace that is in sync; untimed.
	lose(ctx context.Context, what loss) error
	// sync brings the workspace to the remote's main.
	sync(ctx context.Context) (sample, error)
	// kept are the directories beside the live data.
	kept() []string
	close() error
}

// loss is what is gone before a case.
type loss uint8

const (
	nothing loss = iota
	manifest
	store
)

// fetchOnly is the floor: git fetch --depth 1 into a bare repository, and no file written.
type fetchOnly struct {
	dir, url string
}

func (f *fetchOnly) name() string         { return "git fetch alone" }
func (f *fetchOnly) can(c benchCase) bool { return c.lost != manifest }
func (f *fetchOnly) kept() []string       { return []string{f.dir} }
func (f *fetchOnly) close() error         { return nil }

func (f *fetchOnly) reset(ctx context.Context) error {
	if err := setAside(f.dir); err != nil {
		return err
	}
	return initFetcher(ctx, f.dir, "--bare")
}

func (f *fetchOnly) lose(ctx context.Context, _ loss) error {
	return f.reset(ctx)
}

func (f *fetchOnly) sync(ctx context.Context) (sample, error) {
	return measure(ctx, command{f.dir, gitserver.Env(), []string{"git", "fetch", "-q", "--depth=1", f.url, "+refs/heads/main:refs/heads/main"}})
}

// setAside moves a directory out of the way, to be deleted when all is measured. Deleting it now would slow down whoever
// creates files next: some file systems (ext4) pass over inodes that were freed in the last minutes, one by one.
func setAside(dir string) error {
	for n := 1; ; n++ {
		old := fmt.Sprintf("%s.old-%d", dir, n)
		if _, err := os.Lstat(old); err == nil {
			continue
		}
		err := os.Rename(dir, old)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
}

// initFetcher makes an empty repository in which git does no housekeeping while it is measured.
func initFetcher(ctx context.Context, dir string, args ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := git(ctx, dir, nil, append([]string{"-c", "init.defaultBranch=other", "init", "-q"}, args...)...); err != nil {
		return err
	}
	return git(ctx, dir, nil, "config", "gc.auto", "0")
}

// checkout is what people script: git fetch --depth 1, git checkout, rsync -c.
type checkout struct {
	dir, live, url string
}

func (c *checkout) name() string         { return "git + checkout + rsync -c" }
func (c *checkout) can(b benchCase) bool { return b.lost != manifest }
func (c *checkout) kept() []string       { return []string{c.dir} }
func (c *checkout) close() error         { return nil }

func (c *checkout) reset(ctx context.Context) error {
	if err := setAside(c.live); err != nil {
		return err
	}
	if err := os.MkdirAll(c.live, 0o755); err != nil {
		return err
	}
	return c.lose(ctx, store)
}

func (c *checkout) lose(ctx context.Context, _ loss) error {
	if err := setAside(c.dir); err != nil {
		return err
	}
	return initFetcher(ctx, c.dir)
}

func (c *checkout) sync(ctx context.Context) (sample, error) {
	script := `git fetch -q --depth=1 "$1" +refs/heads/main:refs/heads/main &&
git checkout -q -f --detach refs/heads/main &&
exec rsync -rlpc --delete services/ignition/projects services/ignition/config "$2"`
	return measure(ctx, command{c.dir, gitserver.Env(), []string{"sh", "-c", script, "sh", c.url, c.live + "/"}})
}

// agentOnce is the agent as a command: one process for one sync.
type agentOnce struct {
	binary, dir string // dir holds gs.yaml, data/, repo/
}

func newAgent(binary, dir, url string) (*agentOnce, error) {
	a := &agentOnce{binary, dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return a, os.WriteFile(a.file(), fmt.Appendf(nil, gatewaySync, url), 0o644)
}

const gatewaySync = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: bench
spec:
  git:
    repo: %s
    ref: main
  sync:
    profiles:
      default:
        mappings:
          - source: services/ignition/projects
            destination: projects
          - source: services/ignition/config
            destination: config
`

func (a *agentOnce) name() string       { return "agent --once" }
func (a *agentOnce) can(benchCase) bool { return true }
func (a *agentOnce) file() string       { return filepath.Join(a.dir, "gs.yaml") }
func (a *agentOnce) data() string       { return filepath.Join(a.dir, "data") }
func (a *agentOnce) repo() string       { return filepath.Join(a.dir, "repo") }
func (a *agentOnce) kept() []string     { return []string{a.repo(), filepath.Join(a.data(), ".stoker")} }
func (a *agentOnce) close() error       { return nil }

func (a *agentOnce) reset(context.Context) error {
	for _, dir := range []string{a.data(), a.repo()} {
		if err := setAside(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(a.data(), 0o755); err != nil {
		return err
	}
	// The agent leaves a directory alone that no gateway has seeded.
	return os.WriteFile(filepath.Join(a.data(), ".ignition-seed-complete"), nil, 0o644)
}

func (a *agentOnce) lose(_ context.Context, what loss) error {
	if what == manifest {
		return os.RemoveAll(filepath.Join(a.data(), ".stoker"))
	}
	return setAside(a.repo())
}

func (a *agentOnce) sync(ctx context.Context) (sample, error) {
	return measure(ctx, command{a.dir, os.Environ(), append(a.args(), "--once")})
}

func (a *agentOnce) args() []string {
	return []string{a.binary, "--file", a.file(), "--data-dir", a.data(), "--repo-dir", a.repo(), "--gateway-name", "plant-1"}
}

// buildAgent builds the agent as it ships.
func buildAgent(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "stoker.io/stoker/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}
