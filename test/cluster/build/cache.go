// Package build builds the programs of a test cluster from Go modules, once, and keeps them in the user's cache
// directory: etcd, Kubernetes and kubectl, the cluster's DNS, kind, Argo CD with kustomize, and images. It downloads nothing
// but modules.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stoker.io/stoker/test/module"
)

// unusedFor is how long an unused build is kept.
const unusedFor = 14 * 24 * time.Hour

// lockSuffix ends the names of the files that lock takes.
const lockSuffix = ".lock"

// Cache is a directory of builds. Several processes may share it: one builds, and the others wait.
type Cache struct {
	Dir       string    // "" is stoker-cluster in the user's cache directory
	SourceDir string    // root of the main module; "" searches from the working directory upwards
	Progress  io.Writer // receives progress messages; nil discards them
}

// Open fills in the defaults of c and creates its directory.
func Open(c Cache) (*Cache, error) {
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	if c.Dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("directory of builds: %w", err)
		}
		c.Dir = filepath.Join(user, "stoker-cluster")
	}
	if c.SourceDir == "" {
		root, err := module.Root()
		if err != nil {
			return nil, fmt.Errorf("find the source of the cluster's programs: %w", err)
		}
		c.SourceDir = root
	}
	return &c, os.MkdirAll(filepath.Join(c.Dir, "bin"), 0o755)
}

// key returns a hash of the Go version, the platform, parts and the content of files. Together they must determine the build.
func (c *Cache) key(parts []string, files ...string) (string, error) {
	h := sha256.New()
	for _, p := range append([]string{runtime.Version(), runtime.GOOS, runtime.GOARCH}, parts...) {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d:", len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// buildOnce returns the directory <name>-<key> of the cache, and calls fill if it does not exist. The directory appears only
// when it is complete.
func (c *Cache) buildOnce(ctx context.Context, name, key string, fill func(dir string) error) (string, error) {
	final := filepath.Join(c.Dir, "bin", name+"-"+key)
	if markUsed(final) {
		return final, nil
	}
	unlock, err := c.lock(ctx, name+"-"+key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if markUsed(final) {
		return final, nil // built by another process meanwhile
	}
	if err := c.removeUnused(name, time.Now()); err != nil {
		return "", err
	}
	temp := final + ".new"
	if err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o755)); err != nil {
		return "", err
	}
	if err := fill(temp); err != nil {
		return "", errors.Join(err, os.RemoveAll(temp))
	}
	return final, os.Rename(temp, final)
}

// markUsed sets the time of a build's last use. It returns false if the build does not exist.
func markUsed(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// removeUnused removes builds of name, in any version, that have not been used for long, and what interrupted builds left. It
// keeps lock files: another process may hold one, and the time of a lock file does not show its last use.
func (c *Cache) removeUnused(name string, now time.Time) error {
	program, _, _ := strings.Cut(name, "-") // without a version
	old, err := filepath.Glob(filepath.Join(c.Dir, "bin", program+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range old {
		if strings.HasSuffix(dir, lockSuffix) {
			continue
		}
		if info, err := os.Stat(dir); err == nil && now.Sub(info.ModTime()) > unusedFor {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// lock takes the lock of a build across processes. The kernel releases it when a process ends.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.Dir, "bin", name+lockSuffix), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for reported := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if !reported {
			fmt.Fprintf(c.Progress, "waiting for %s, which another process is building …\n", name)
			reported = true
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), ctx.Err()), f.Close())
		case <-ticker.C:
		}
	}
}
