//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
)

// commandVariable makes the test binary run the command itself, for tests of its process.
const commandVariable = "STOKER_TEST_CLUSTER"

// TestMain lets the test binary also serve as the keeper that its commands start.
func TestMain(m *testing.M) {
	if os.Getenv(commandVariable) != "" {
		if err := os.Unsetenv(commandVariable); err != nil { // the keeper must not run the command
			panic(err)
		}
		main()
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	if len(os.Args) > 1 {
		if mine, err := keeper.Run(ctx, os.Args[1], os.Stdin, os.Stdout); mine {
			stop()
			if err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	stop()
	os.Exit(m.Run())
}

// cacheOfItsOwn returns a cache that shares the builds of the real one but has its own run directory. It
// hides clusters with nodes of other users.
func cacheOfItsOwn(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: run make test-cluster, or go test without -short")
	}
	shared, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	_, err = shared.Kubernetes(t.Context(), "")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "cluster-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Mkdir(filepath.Join(dir, "stoker-cluster"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(shared.Dir, "bin"), filepath.Join(dir, "stoker-cluster", "bin")))
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv(build.VersionVariable, "")
	was := nodesRun
	t.Cleanup(func() { nodesRun = was })
	nodesRun = filepath.Join(dir, "nodes")
	return filepath.Join(dir, "stoker-cluster", "run")
}

func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return out.String(), errs.String(), err
}

func TestClusterOfCommand(t *testing.T) {
	runs := cacheOfItsOwn(t)
	out, _, err := command(t, "run", "-control", "--", "sh", "-c", `test -s "$KUBECONFIG" && echo "with $KUBECONFIG"; exit 3`)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 3, exit.ExitCode(), "the exit code of the command must be returned")
	kubeconfig, ok := strings.CutPrefix(strings.TrimSpace(out), "with ")
	require.True(t, ok, out)
	assert.NoFileExists(t, kubeconfig)
	assert.NoDirExists(t, filepath.Join(runs, "up-state"))
}

// Ctrl-C reaches the command and every process that it has started, except those that keep the cluster.
func TestInterruptEndsCluster(t *testing.T) {
	runs := cacheOfItsOwn(t)
	cmd := exec.Command(os.Args[0], "run", "-control", "--", "sh", "-c", `echo "$KUBECONFIG"; exec sleep 1000`)
	cmd.Env = append(os.Environ(), commandVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // like a shell with a terminal
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has usually ended by then
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	kubeconfig := strings.TrimSpace(line)
	require.FileExists(t, kubeconfig)
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
	assert.Error(t, cmd.Wait())
	assert.NoFileExists(t, kubeconfig)
	assert.NoDirExists(t, filepath.Join(runs, "up-state"))
}

func TestClusterUpAndDown(t *testing.T) {
	runs := cacheOfItsOwn(t)
	out, said, err := command(t, "up", "-control")
	require.NoError(t, err, said)
	kubeconfig, ok := strings.CutPrefix(strings.TrimSpace(out), "export KUBECONFIG=")
	require.True(t, ok, out)
	assert.FileExists(t, kubeconfig)
	_, _, err = command(t, "up", "-control")
	assert.ErrorContains(t, err, "runs already")
	everyVerb(t)
	_, _, err = command(t, "down", "-control")
	require.NoError(t, err)
	assert.NoDirExists(t, filepath.Join(runs, "up"))
	assert.NoDirExists(t, filepath.Join(runs, "up-state"))
	_, _, err = command(t, "down", "-control")
	assert.NoError(t, err)
}

// everyVerb runs every subcommand against a running control plane.
func everyVerb(t *testing.T) {
	does := func(args ...string) string {
		t.Helper()
		out, said, err := command(t, args...)
		require.NoError(t, err, said)
		return out
	}
	state := func(program string) string {
		t.Helper()
		for line := range strings.Lines(does("ctl", "status")) {
			if words := strings.Fields(line); words[0] == program {
				return words[1]
			}
		}
		return "missing"
	}
	const server, scheduler = "kube-apiserver", "kube-scheduler"
	assert.Equal(t, "ok", does("kubectl", "get", "--raw", "/readyz"))
	assert.Equal(t, "up", state(server))
	does("ctl", "kill", server)
	assert.Equal(t, "down", state(server))
	_, _, err := command(t, "kubectl", "get", "--raw", "/readyz")
	assert.Error(t, err)
	does("ctl", "start", server)
	assert.Equal(t, "ok", does("kubectl", "get", "--raw", "/readyz"))
	for _, verb := range []string{"pause", "resume", "restart"} {
		does("ctl", verb, scheduler)
		assert.Equal(t, "up", state(scheduler), verb)
	}
	assert.NotEmpty(t, strings.TrimSpace(does("ctl", "log", scheduler)))
	does("ctl", "stop", scheduler)
	assert.Equal(t, "down", state(scheduler))

	for want, args := range map[string][]string{
		"want status, or one of":                           {"ctl"},
		`"end": want status, stop`:                         {"ctl", "end", scheduler},
		`no program "x"`:                                   {"ctl", "stop", "x"},
		"load: want a name":                                {"load"},
		"the cluster has no node that could run the image": {"load", "registry.local/sh:dev", "/bin/sh"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			_, _, err := command(t, args...)
			assert.ErrorContains(t, err, want)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	cacheOfItsOwn(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":           {nil, `want one of ["up" "down"`},
		"unknown verb":      {[]string{"start"}, `"start": want one of`},
		"no command":        {[]string{"run"}, "no command given"},
		"too many nodes":    {[]string{"up", "-nodes", "9"}, "9 nodes: want 1 to 3"},
		"unknown version":   {[]string{"build", "-kubernetes", "v1.0.0"}, `kubernetes "v1.0.0" has no module file`},
		"first run by hand": {[]string{"first"}, "first process of a PID namespace"},
		"no configuration":  {[]string{"keep"}, "configuration"},
		"no cluster":        {[]string{"ctl", "status"}, "no cluster runs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := command(t, c.args...)
			assert.ErrorContains(t, err, c.want, name)
		})
	}
	_, _, err := command(t, "keep")
	assert.True(t, errors.Is(err, io.EOF))
}
