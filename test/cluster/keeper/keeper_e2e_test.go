//go:build e2e && linux

package keeper_test

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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/local"
	"stoker.io/stoker/test/cluster/rundir"
)

// holdVariable makes the test binary start the cluster of a keeper.Config and wait to be killed.
const holdVariable = "STOKER_TEST_HOLD"

// TestMain lets the test binary also serve as the keeper program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		mine, err := keeper.Run(ctx, os.Args[1], os.Stdin, os.Stdout)
		stop()
		if mine {
			exit(err)
		}
	}
	if raw := os.Getenv(holdVariable); raw != "" {
		exit(hold(raw))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// nodesConfig returns the configuration of a cluster with one node. Starting that cluster needs root.
func nodesConfig(t *testing.T) keeper.Config {
	t.Helper()
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	config, err := local.Prepare(t.Context(), cache, 1, os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	return config
}

// machineState lists what a cluster changes on this machine: links, entries of directories, mounts, tables, cgroups and most
// settings, one item per line.
func machineState(t *testing.T) []string {
	t.Helper()
	var lines []string
	add := func(kind string, things ...string) {
		for _, thing := range things {
			lines = append(lines, kind+" "+thing)
		}
	}
	entries := func(dir string) (names []string) {
		found, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range found {
			names = append(names, filepath.Join(dir, e.Name()))
		}
		return names
	}
	add("link", entries("/sys/class/net")...)
	add("entry", slices.Concat(entries("/run"), entries("/var/lib"), entries("/var/log"))...)
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	add("mount", slices.DeleteFunc(strings.Split(strings.TrimSpace(string(mounts)), "\n"), func(mount string) bool {
		return strings.Contains(mount, "/Test") && !strings.Contains(mount, "/"+topLevelTest(t)) // another test that runs beside this one
	})...)
	tables, err := exec.Command("nft", "list", "ruleset").Output()
	require.NoError(t, err)
	add("table", strings.Split(string(tables), "\n")...)
	require.NoError(t, filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process, which has ended since its directory was listed
		}
		if err == nil && d.IsDir() && !strings.HasPrefix(d.Name(), "stoker-bench-") { // the tests of the bench may run beside this one
			add("cgroup", path)
		}
		return err
	}))
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes", "fs/inotify/max_user_instances", "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding",
		"net/ipv4/conf/default/forwarding", "net/ipv4/conf/all/route_localnet",
	} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		require.NoError(t, err)
		add("setting", name+" = "+strings.TrimSpace(string(value)))
	}
	slices.Sort(lines)
	return lines
}

// topLevelTest returns the name of the test without its sub-tests. The paths of the test's directories contain it.
func topLevelTest(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// processes lists the processes of a cluster: those in another PID namespace than this process, those whose command line has a
// path of the cluster, and keepers. It assumes that the machine runs no other containers.
func processes(t *testing.T, c keeper.Config) []string {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/pid")
	require.NoError(t, err)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	var found []string
	for _, dir := range dirs {
		namespace, err := os.Readlink(filepath.Join(dir, "ns", "pid"))
		if err != nil {
			continue // the process has ended
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		command := strings.ReplaceAll(string(line), "\x00", " ")
		if namespace != own || strings.Contains(command, c.Dir) || strings.Contains(command, c.Run) || strings.HasSuffix(command, " "+keeper.VerbKeep+" ") {
			found = append(found, filepath.Base(dir)+" "+command)
		}
	}
	return found
}

func TestNoTraceAfterEnd(t *testing.T) {
	c := nodesConfig(t)
	require.False(t, rundir.Owned(c.Run), "a cluster of the user runs; end it first")
	require.NoError(t, keeper.Down(t.Context(), c.Run))
	before := machineState(t)
	gone := func(t *testing.T) {
		t.Helper()
		assert.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Empty(collect, processes(t, c)) }, 30*time.Second, 50*time.Millisecond)
	}
	asBefore := func(t *testing.T) {
		t.Helper()
		gone(t)
		require.NoError(t, keeper.Down(t.Context(), c.Run))
		assert.Equal(t, before, machineState(t))
		assert.NoDirExists(t, c.Run)
		assert.NoDirExists(t, c.Dir)
	}

	t.Run("starter stops the cluster", func(t *testing.T) {
		k := start(t, c)
		assert.NotEqual(t, before, machineState(t))
		_, err := keeper.Start(t.Context(), os.Args[0], c, io.Discard)
		assert.ErrorContains(t, err, "runs already")
		require.NoError(t, k.Stop())
		assert.Empty(t, processes(t, c))
		asBefore(t)
	})
	t.Run("down stops the cluster", func(t *testing.T) {
		k := start(t, c)
		require.NoError(t, k.Stay())
		require.NoError(t, keeper.Down(t.Context(), c.Run))
		asBefore(t) // the keeper ends a moment after it has cleaned up
	})
	t.Run("killed starter", func(t *testing.T) {
		holdAndKill(t, c)
		gone(t)
		// Without a call of down, the keeper cleans up the machine.
		assert.Eventually(t, func() bool { return slices.Equal(before, machineState(t)) }, 30*time.Second, 50*time.Millisecond)
		asBefore(t)
	})
	t.Run("killed keeper", func(t *testing.T) {
		k := start(t, c)
		require.NoError(t, k.Stay())
		killKeeper(t, c)
		gone(t)
		asBefore(t)
	})
	t.Run("failed start", func(t *testing.T) {
		broken := c
		broken.APIServer = []string{"--no-such-flag"}
		_, err := keeper.Start(t.Context(), os.Args[0], broken, io.Discard)
		assert.ErrorContains(t, err, "no-such-flag")
		asBefore(t)
	})
}

func start(t *testing.T, c keeper.Config) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Start(t.Context(), os.Args[0], c, os.Stderr)
	require.NoError(t, err)
	require.NotEmpty(t, processes(t, c))
	return k
}

// killKeeper kills a running keeper and waits until it has ended.
func killKeeper(t *testing.T, c keeper.Config) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Run, "keeper.json"))
	require.NoError(t, err)
	var record struct{ PID int }
	require.NoError(t, json.Unmarshal(raw, &record))
	process, err := os.FindProcess(record.PID)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	require.Eventually(t, func() bool { return !rundir.Owned(c.Run) }, 30*time.Second, 10*time.Millisecond)
}

// holdAndKill starts a cluster from another process and kills that process when the cluster is ready.
func holdAndKill(t *testing.T, c keeper.Config) {
	t.Helper()
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holdVariable+"="+string(raw))
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)
	require.True(t, rundir.Owned(c.Run))
	require.NoError(t, holder.Process.Kill())
	assert.Error(t, holder.Wait())
}

// hold is the main function of a process that the tests start and kill.
func hold(raw string) error {
	var c keeper.Config
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	if _, err := keeper.Start(context.Background(), os.Args[0], c, os.Stderr); err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString("held\n"); err != nil {
		return err
	}
	select {}
}
