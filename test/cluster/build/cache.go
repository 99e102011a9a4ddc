// Package build builds the programs of a test cluster from Go modules, once, and keeps them in the user's cache
// directory: etcd, Kubernetes and kubectl, cluster DNS, simulated nodes. It downloads nothing but modules.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// unusedFor is how long an unused build is kept.
const unusedFor = 14 * 24 * time.Hour

// Cache is a directory of builds. Several processes may share it: one builds, and the others wait.
type Cache struct {
	Dir    string    // "" is stoker-cluster in the user's cache directory
	Module string    // directory of this module; "" searches from the working directory upwards
	Say    io.Writer // receives progress messages
}

// Open fills in defaults.
func Open(c Cache) (*Cache, error) {
	if c.Say == nil {
		c.Say = io.Discard
	}
	if c.Dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("directory of builds: %w", err)
		}
		c.Dir = filepath.Join(user, "stoker-cluster")
	}
	if c.Module == "" {
		module, err := findModule()
		if err != nil {
			return nil, err
		}
		c.Module = module
	}
	return &c, os.MkdirAll(filepath.Join(c.Dir, "bin"), 0o755)
}

const module = "stoker.io/stoker"

func findModule() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(content), "\n")
			if strings.TrimSpace(first) == "module "+module {
				return dir, nil
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("%s is not inside module %s: the programs of the cluster are built from its source", start, module)
		}
	}
}

// key hashes everything that determines a build.
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

// removeUnused removes other builds of the same thing that have not been used for long.
func (c *Cache) removeUnused(name string, now time.Time) error {
	old, err := filepath.Glob(filepath.Join(c.Dir, "bin", name+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && now.Sub(info.ModTime()) > unusedFor {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// lock takes the lock of a build across processes. The kernel releases it when a process ends.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.Dir, "bin", name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
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
			fmt.Fprintf(c.Say, "waiting for %s, which another process is building …\n", name)
			reported = true
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), ctx.Err()), f.Close())
		case <-ticker.C:
		}
	}
}
