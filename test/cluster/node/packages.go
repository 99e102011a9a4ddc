//go:build linux

// Package node runs the nodes of a test cluster on this machine: a containerd and a kubelet each, and the pod network.
// It also restores the machine afterwards. It needs root, and Debian or a derivative.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Need is a program, and the Debian package that contains it.
type Need struct{ Program, Package string }

// required lists the programs that nodes need.
var required = []Need{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"containerd-shim-runc-v2", "containerd"},
	{"runc", "runc"},
	{filepath.Join(cniPlugins, "bridge"), "containernetworking-plugins"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
	{"mount", "mount"},
	{"busybox", "busybox-static"},
}

// cniPlugins is Debian's directory of the network plugins.
const cniPlugins = "/usr/lib/cni"

// installTimeout is the timeout for the installation of packages.
const installTimeout = 10 * time.Minute

// Install installs what nodes need and this machine lacks, or returns an error that names it.
func Install(ctx context.Context, say io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster with nodes needs root: it creates network links, cgroups and mounts")
	}
	return InstallPackages(ctx, say, required...)
}

// InstallPackages installs the packages of missing programs, or returns an error that names them.
func InstallPackages(ctx context.Context, say io.Writer, needs ...Need) error {
	_, packages := missing(needs)
	if len(packages) == 0 {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return fmt.Errorf("missing on this machine, which has no apt-get to install them: %s", strings.Join(packages, " "))
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	fmt.Fprintf(say, "installing %s …\n", strings.Join(packages, " "))
	install := append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)
	if run(ctx, apt, install...) != nil { // package lists may be outdated or missing: fetch them once
		if err := run(ctx, apt, "update", "-qq"); err != nil {
			return err
		}
		if err := run(ctx, apt, install...); err != nil {
			return err
		}
	}
	if programs, _ := missing(needs); len(programs) > 0 {
		return fmt.Errorf("installed %s, and still missing: %s", strings.Join(packages, " "), strings.Join(programs, " "))
	}
	return nil
}

// missing returns the programs that this machine lacks, and the packages that contain them.
func missing(needs []Need) (programs, packages []string) {
	for _, n := range needs {
		if _, err := exec.LookPath(n.Program); err == nil {
			continue
		}
		programs = append(programs, n.Program)
		if !slices.Contains(packages, n.Package) {
			packages = append(packages, n.Package)
		}
	}
	return programs, packages
}

// run runs a program. If the program fails, the error has its output.
func run(ctx context.Context, program string, args ...string) error {
	return runWithInput(ctx, "", program, args...)
}

// runWithInput is run with a standard input.
func runWithInput(ctx context.Context, input, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.Stdin = strings.NewReader(input)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
