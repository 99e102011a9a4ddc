//go:build linux

package main

import (
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

// TestMain lets the test binary be the keeper that its own commands start.
func TestMain(m *testing.M) {
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

// cacheOfItsOwn gives the test a cache with the builds of the real one and runs of its own.
func cacheOfItsOwn(t *testing.T) string {
	shared, err := build.Open(build.Cache{Say: os.Stderr})
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
	return filepath.Join(dir, "stoker-cluster", "run")
}

func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return out.String(), errs.String(), err
}

func TestAClusterLivesAsLongAsACommand(t *testing.T) {
	runs := cacheOfItsOwn(t)
	out, _, err := command(t, "run", "-control", "--", "sh", "-c", `test -s "$KUBECONFIG" && echo "with $KUBECONFIG"; exit 3`)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 3, exit.ExitCode(), "what the command says is passed on")
	kubeconfig, ok := strings.CutPrefix(strings.TrimSpace(out), "with ")
	require.True(t, ok, out)
	assert.NoFileExists(t, kubeconfig)
	assert.NoDirExists(t, filepath.Join(runs, "up-state"))
}

func TestAClusterStaysUntilDown(t *testing.T) {
	runs := cacheOfItsOwn(t)
	out, said, err := command(t, "up", "-control")
	require.NoError(t, err, said)
	kubeconfig, ok := strings.CutPrefix(strings.TrimSpace(out), "export KUBECONFIG=")
	require.True(t, ok, out)
	assert.FileExists(t, kubeconfig)
	_, _, err = command(t, "up", "-control")
	assert.ErrorContains(t, err, "runs already")
	_, _, err = command(t, "down", "-control")
	require.NoError(t, err)
	assert.NoDirExists(t, filepath.Join(runs, "up"))
	assert.NoDirExists(t, filepath.Join(runs, "up-state"))
	_, _, err = command(t, "down", "-control")
	assert.NoError(t, err)
}

func TestCommandsThatMakeNoSenseSayWhatDoes(t *testing.T) {
	cacheOfItsOwn(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":          {nil, `want one of ["up" "down"`},
		"an unknown verb":  {[]string{"start"}, `"start": want one of`},
		"no command":       {[]string{"run"}, "which command?"},
		"too many nodes":   {[]string{"up", "-nodes", "9"}, "9 nodes: want 1 to 3"},
		"another version":  {[]string{"build", "-kubernetes", "v1.0.0"}, `kubernetes "v1.0.0" has no module file`},
		"first by hand":    {[]string{"first"}, "first process of a namespace"},
		"no configuration": {[]string{"keep"}, "configuration"},
	} {
		_, _, err := command(t, c.args...)
		assert.ErrorContains(t, err, c.want, name)
	}
	_, _, err := command(t, "keep")
	assert.True(t, errors.Is(err, io.EOF))
}
