//go:build linux

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const cgroups = "/sys/fs/cgroup"

// hierarchies returns the directories in which a cgroup must be created: one per controller in version 1, or the single
// one of version 2.
func hierarchies() (dirs []string, v2 bool, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(cgroups, &stat); err != nil {
		return nil, false, fmt.Errorf("%s: %w", cgroups, err)
	}
	if stat.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroups}, true, nil
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		if e.IsDir() { // a symbolic link is another name of one of them
			dirs = append(dirs, filepath.Join(cgroups, e.Name()))
		}
	}
	if len(dirs) == 0 {
		return nil, false, fmt.Errorf("%s is empty: mount the cgroups", cgroups)
	}
	return dirs, false, nil
}

// makeCgroup creates the cgroup below which a kubelet keeps its pods.
func makeCgroup(name string) error {
	dirs, v2, err := hierarchies()
	if err != nil {
		return err
	}
	if v2 {
		if err := delegate(); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		own := filepath.Join(dir, name)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		// In version 1, a cgroup without processors and memory nodes cannot run anything.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(dir, file))
			if v2 || errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(own, file), value, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate enables the controllers that a kubelet needs for the cgroups below the root (version 2).
func delegate() error {
	for _, controller := range []string{"cpuset", "cpu", "io", "memory", "pids", "hugetlb"} {
		known, err := os.ReadFile(filepath.Join(cgroups, "cgroup.controllers"))
		if err != nil {
			return err
		}
		if !strings.Contains(" "+strings.TrimSpace(string(known))+" ", " "+controller+" ") {
			continue
		}
		err = os.WriteFile(filepath.Join(cgroups, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("controller %s: processes stand in the root cgroup, as in a container with a cgroup namespace; move them to a cgroup below it first: %w", controller, err)
		}
		if err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
	}
	return nil
}

// removeCgroups removes the cgroups of all nodes and of their pods, leaves first. A cgroup stays busy until the kernel has
// released its processes.
func removeCgroups(ctx context.Context) error {
	dirs, _, err := hierarchies()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, dir := range dirs {
		for n := 1; n <= MaxNodes; n++ {
			own := filepath.Join(dir, cgroupRoot(n))
			for {
				err := removeTree(own)
				if err == nil {
					break
				}
				select {
				case <-ctx.Done():
					return errors.Join(fmt.Errorf("cgroup %s: %w", own, err), ctx.Err())
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
	}
	return nil
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
