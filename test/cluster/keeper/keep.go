//go:build linux

package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stoker.io/stoker/test/cluster/node"
	"stoker.io/stoker/test/cluster/rundir"
)

// Run runs test/cluster's program as one of the keeper's verbs. It returns false for other verbs.
func Run(ctx context.Context, verb string, stdin io.Reader, stdout io.Writer) (mine bool, err error) {
	switch verb {
	case VerbKeep:
		return true, keep(ctx, stdin, stdout)
	case verbFirst:
		return true, runInit()
	case verbInside:
		return true, runCluster(ctx, stdin, stdout)
	}
	return false, nil
}

// writeMessage sends a message to the starter.
func writeMessage(stdout io.Writer, m message) error { return json.NewEncoder(stdout).Encode(m) }

// keep runs a keeper: it reads the Config from stdin, runs the cluster until the starter ends, ctx is done or the cluster
// ends by itself, and cleans up.
func keep(ctx context.Context, stdin io.Reader, stdout io.Writer) (err error) {
	// The kernel ties the child's life to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	starter := bufio.NewReader(stdin)
	var c Config
	line, err := starter.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c)
	}
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	dir, err := rundir.Own(c.Run)
	if errors.Is(err, rundir.ErrOwned) {
		return writeMessage(stdout, message{Error: fmt.Sprintf("a cluster runs already (%s); end it by: go run ./test/cluster down", c.Run)})
	}
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, cleanUp(context.Background(), c)); err != nil {
			err = errors.Join(err, dir.Release()) // keep the log for diagnosis
		} else {
			err = dir.Remove()
		}
	}()
	if err := prepare(ctx, c); err != nil {
		return errors.Join(writeMessage(stdout, message{Error: err.Error()}), err)
	}
	starterEnded := make(chan struct{})
	go func() {
		waitForStarter(starter)
		close(starterEnded)
	}()
	if c.Kind != nil {
		return keepKind(ctx, c, starterEnded, stdout)
	}
	child := childCommand(c)
	child.Stdout = stdout
	config, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return errors.Join(writeMessage(stdout, message{Error: err.Error()}), err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	if err := json.NewEncoder(config).Encode(c); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return fmt.Errorf("the cluster ended by itself: %w", err)
	case <-starterEnded:
	case <-ctx.Done():
	}
	return endChild(child, ended, c.Nodes == 0)
}

// endChild ends the keeper's child, and with it the cluster. If graceful is set, the child first gets SIGTERM and time to
// end its programs. The first process of a namespace needs no such time, because killing it kills all others.
func endChild(child *exec.Cmd, ended <-chan error, graceful bool) error {
	if graceful {
		if err := child.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		timer := time.NewTimer(endTimeout / 2)
		defer timer.Stop()
		select {
		case err := <-ended:
			return err
		case <-timer.C:
		}
	}
	if err := child.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	var killed *exec.ExitError
	if err := <-ended; err != nil && !errors.As(err, &killed) {
		return err
	}
	return nil
}

// childCommand returns the keeper's child: the first process of a namespace for nodes, otherwise the cluster itself.
func childCommand(c Config) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", verbInside)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.Nodes > 0 {
		cmd.Args[1] = verbFirst
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	return cmd
}

// prepare removes the rest of an earlier cluster, writes the record, and prepares the machine for a new cluster.
func prepare(ctx context.Context, c Config) error {
	before, err := readRecord(c.Run)
	if err != nil {
		return err
	}
	if err := errors.Join(cleanUp(ctx, before.Config), cleanUp(ctx, c)); err != nil {
		return fmt.Errorf("clean up an earlier cluster: %w", err)
	}
	started, err := startTime(os.Getpid())
	if err != nil {
		return err
	}
	raw, err := json.Marshal(record{os.Getpid(), started, c})
	if err != nil {
		return err
	}
	if err := os.WriteFile(recordFile(c.Run), raw, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if c.Nodes == 0 {
		return nil
	}
	return machine(c.Run).Prepare(ctx, c.Nodes)
}

// record identifies the keeper of a cluster for other processes.
type record struct {
	PID     int
	Started string
	Config  Config
}

func recordFile(run string) string { return filepath.Join(run, "keeper.json") }

// readRecord reads the record of a run directory. Without one, it returns a record that has only the run directory.
func readRecord(run string) (record, error) {
	r := record{Config: Config{Run: run}}
	raw, err := os.ReadFile(recordFile(run))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s: %w", recordFile(run), err)
	}
	return r, nil
}

func machine(run string) node.Machine { return node.Machine{File: filepath.Join(run, "machine.json")} }

// cleanUp restores the machine and removes the rest of a cluster whose processes have ended.
func cleanUp(ctx context.Context, c Config) error {
	var errs []error
	if c.Run == Nodes {
		errs = append(errs, machine(c.Run).Restore(ctx))
	}
	if c.Kind != nil {
		errs = append(errs, c.deleteKind(ctx))
	}
	if c.Dir != "" {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	entries, err := os.ReadDir(c.Run)
	errs = append(errs, err)
	for _, e := range entries {
		// Keep the held lock, the log for diagnosis, and the record of changes that could not be undone yet.
		if name := e.Name(); name != "lock" && name != "keeper.log" && name != "machine.json" {
			errs = append(errs, os.RemoveAll(filepath.Join(c.Run, name)))
		}
	}
	return errors.Join(errs...)
}

// Down ends the cluster of a run directory, whichever process started it, and removes the rest of one that has ended.
func Down(ctx context.Context, run string) error {
	if _, err := os.Stat(run); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	c, err := endKeeper(ctx, run)
	if err != nil {
		return err
	}
	dir, err := rundir.Own(run)
	if err != nil {
		return err
	}
	if err := cleanUp(ctx, c); err != nil {
		return errors.Join(err, dir.Release())
	}
	return dir.Remove()
}

// endKeeper terminates a running keeper, waits for its end, and returns its configuration.
func endKeeper(ctx context.Context, run string) (Config, error) {
	for signaled := false; ; {
		r, err := readRecord(run)
		if err != nil || !rundir.Owned(run) {
			return r.Config, err
		}
		if r.PID != 0 && !signaled {
			if err := terminate(r.PID, r.Started); err != nil {
				return r.Config, err
			}
			signaled = true
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return r.Config, fmt.Errorf("the keeper of %s has not ended: %w", run, ctx.Err())
		case <-timer.C:
		}
	}
}

// terminate signals a process, if it is still the one that started at the given time.
func terminate(pid int, started string) (err error) {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() { err = errors.Join(err, unix.Close(handle)) }()
	// The handle is opened before the check, so that both refer to the same process.
	if now, err := startTime(pid); err != nil || now != started {
		return nil // it has ended; its PID may have been reused
	}
	if err := unix.PidfdSendSignal(handle, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}

// startTime distinguishes processes with the same PID. The unit does not matter.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(fields))
	}
	return fields[19], nil
}

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
