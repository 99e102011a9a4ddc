//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"stoker.io/stoker/test/cluster/node"
)

// runInit is the first process of the cluster's namespaces. It sets up the mounts, starts the cluster and reaps orphans.
// When it ends, the kernel ends the cluster.
func runInit() error {
	if os.Getpid() != 1 {
		return errors.New("this verb runs only as the first process of a PID namespace")
	}
	if err := setUpMounts(); err != nil {
		return err
	}
	cluster, err := os.StartProcess("/proc/self/exe", []string{"cluster", verbInside}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid == cluster.Pid:
			return fmt.Errorf("the cluster ended: %s", describe(status))
		}
	}
}

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}

// setUpMounts makes the machine's mounts visible in this namespace but not the reverse, mounts its /proc, and mounts an
// empty directory over each of node.Covered.
func setUpMounts() error {
	for _, how := range []uintptr{unix.MS_SLAVE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", how|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("propagation of mounts: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range node.Covered() {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64m"); err != nil {
			return fmt.Errorf("mount %s: %w", filepath.Clean(dir), err)
		}
	}
	return nil
}
