package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/gitserver"
)

// contestant is a program that keeps a directory in sync with a branch.
type contestant interface {
	name() string
	// home is the workspace, which contestants may share.
	home() string
	// can reports whether a case applies to this contestant.
	can(c benchCase) bool
	// reset makes the workspace empty; untimed.
	reset(ctx context.Context) error
	// lose destroys a part of a workspace that is in sync; untimed.
	lose(ctx context.Context, what loss) error
	// ready starts what must run before the commit arrives; untimed.
	ready(ctx context.Context) error
	// sync brings the workspace to the remote's main.
	sync(ctx context.Context) (sample, error)
	// kept returns the directories that the contestant keeps beside the live data.
	kept() []string
	close() error
}

// loss is the part of a workspace that is destroyed before a case.
type loss uint8

const (
	loseNothing loss = iota
	loseManifest
	loseStore
)

// fetchOnly is the lower bound: git fetch --depth 1 into a bare repository, without writing files.
type fetchOnly struct {
	dir, url string
	wrap     []string // prefix of the command
}

func (f *fetchOnly) name() string                { return fetch }
func (f *fetchOnly) home() string                { return f.dir }
func (f *fetchOnly) can(c benchCase) bool        { return c.lost != loseManifest && c.only == "" }
func (f *fetchOnly) kept() []string              { return []string{f.dir} }
func (f *fetchOnly) ready(context.Context) error { return nil }
func (f *fetchOnly) close() error                { return nil }

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
	return measure(ctx, command{f.dir, gitserver.Env(), append(slices.Clone(f.wrap), "git", "fetch", "-q", "--depth=1", f.url, "+refs/heads/main:refs/heads/main")})
}

// setAside renames a directory that is deleted after all measurements. Deleting it now would slow down later file
// creation: some file systems (ext4) skip inodes freed in the last minutes one by one.
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

// initFetcher creates an empty repository in which git does no housekeeping during measurements.
func initFetcher(ctx context.Context, dir string, args ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := repository.Git(ctx, dir, nil, append([]string{"-c", "init.defaultBranch=other", "init", "-q"}, args...)...); err != nil {
		return err
	}
	return repository.Git(ctx, dir, nil, "config", "gc.auto", "0")
}

// checkout is what users commonly script: git fetch --depth 1, git checkout, rsync -c.
type checkout struct {
	dir, live, url string
	wrap           []string // prefix of the command
}

func (c *checkout) name() string                { return rsync }
func (c *checkout) home() string                { return c.dir }
func (c *checkout) can(b benchCase) bool        { return b.lost == loseNothing && b.only == "" }
func (c *checkout) kept() []string              { return []string{c.dir} }
func (c *checkout) ready(context.Context) error { return nil }
func (c *checkout) close() error                { return nil }

func (c *checkout) reset(ctx context.Context) error {
	if err := setAside(c.live); err != nil {
		return err
	}
	if err := os.MkdirAll(c.live, 0o755); err != nil {
		return err
	}
	return c.lose(ctx, loseStore)
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
	return measure(ctx, command{c.dir, gitserver.Env(), append(slices.Clone(c.wrap), "sh", "-c", script, "sh", c.url, c.live+"/")})
}

// agentOnce is the agent as a command: one process per sync.
type agentOnce struct {
	binary, dir string // dir has gs.yaml, data/, repo/
	wrap        []string
	more        []string // further arguments
}

func newAgent(binary, dir, url string, wrap ...string) (*agentOnce, error) {
	a := &agentOnce{binary: binary, dir: dir, wrap: wrap}
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

func (a *agentOnce) name() string                { return once }
func (a *agentOnce) home() string                { return a.dir }
func (a *agentOnce) can(c benchCase) bool        { return c.only == "" || c.only == once }
func (a *agentOnce) file() string                { return filepath.Join(a.dir, "gs.yaml") }
func (a *agentOnce) data() string                { return filepath.Join(a.dir, "data") }
func (a *agentOnce) repo() string                { return filepath.Join(a.dir, "repo") }
func (a *agentOnce) kept() []string              { return []string{a.repo(), filepath.Join(a.data(), ".stoker")} }
func (a *agentOnce) ready(context.Context) error { return nil }
func (a *agentOnce) close() error                { return nil }

func (a *agentOnce) reset(context.Context) error {
	for _, dir := range []string{a.data(), a.repo()} {
		if err := setAside(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(a.data(), 0o755); err != nil {
		return err
	}
	// The agent does not touch a directory that no gateway has seeded.
	return os.WriteFile(filepath.Join(a.data(), ".ignition-seed-complete"), nil, 0o644)
}

func (a *agentOnce) lose(_ context.Context, what loss) error {
	if what == loseManifest {
		return os.RemoveAll(filepath.Join(a.data(), ".stoker"))
	}
	return setAside(a.repo())
}

func (a *agentOnce) sync(ctx context.Context) (sample, error) {
	return measure(ctx, command{a.dir, os.Environ(), append(a.args(), "--once")})
}

func (a *agentOnce) args() []string {
	return slices.Concat(a.wrap, []string{a.binary, "--file", a.file(), "--data-dir", a.data(), "--repo-dir", a.repo(),
		"--gateway-name", "plant-1", "--max-files", "2000000"}, a.more)
}

// agentUnsynced is the agent with fsync disabled. It shows the cost of durability in a first sync.
type agentUnsynced struct{ *agentOnce }

func (a *agentUnsynced) name() string         { return unsynced }
func (a *agentUnsynced) can(c benchCase) bool { return c.fresh }

// build builds a program of this module as it ships.
func build(ctx context.Context, binary, pkg string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", strings.Join(append([]string{"-s -w"}, flags...), " "), "-o", binary, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	return nil
}
