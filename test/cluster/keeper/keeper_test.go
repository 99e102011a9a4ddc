//go:build linux

package keeper_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/rundir"
	"stoker.io/stoker/test/program"
)

// short returns a directory whose path is short enough for sockets.
func short(t *testing.T) string {
	dir, err := os.MkdirTemp("", "keeper-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// controlConfig returns a cluster with only a control plane. It does not need root.
func controlConfig(t *testing.T) keeper.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: run make test-cluster, or go test without -short")
	}
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	bin, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	dir := short(t)
	return keeper.Config{Run: filepath.Join(dir, "run"), Dir: filepath.Join(dir, "state"), Bin: bin}
}

func TestControlPlaneLifecycle(t *testing.T) {
	t.Parallel()
	c := controlConfig(t)
	k, err := keeper.Start(t.Context(), os.Args[0], c, io.Discard)
	require.NoError(t, err)
	require.NoError(t, k.Stay())
	client := keeper.NewClient(c.Run)
	running, err := client.Config(t.Context())
	require.NoError(t, err)
	assert.Equal(t, keeper.Running{Kubeconfig: k.Kubeconfig, Bin: c.Bin}, running)
	states, err := client.States()
	require.NoError(t, err)
	require.Len(t, states, 4)
	require.NoError(t, client.Kill("kube-apiserver"))
	assert.ErrorContains(t, client.Pause("kube-apiserver"), "does not run")
	require.NoError(t, client.Restart(t.Context(), "kube-apiserver"))
	assert.ErrorContains(t, client.Stop("kubelet-n1"), `no program "kubelet-n1"`)
	_, err = keeper.Start(t.Context(), os.Args[0], c, io.Discard)
	require.ErrorContains(t, err, "runs already")

	states, err = client.States()
	require.NoError(t, err)
	require.NoError(t, keeper.Down(t.Context(), c.Run))
	for _, s := range states {
		require.NotZero(t, s.PID, s.Name)
		assert.NoDirExists(t, filepath.Join("/proc", strconv.Itoa(s.PID)))
	}
	assert.NoDirExists(t, c.Run)
	assert.NoDirExists(t, c.Dir)
	require.NoError(t, keeper.Down(t.Context(), c.Run), "Down must succeed if no cluster runs")
	_, err = client.States()
	assert.ErrorContains(t, err, "does it run?")
}

func TestFailedStartCleansUp(t *testing.T) {
	t.Parallel()
	c := controlConfig(t)
	c.APIServer = []string{"--no-such-flag"}
	_, err := keeper.Start(t.Context(), os.Args[0], c, io.Discard)
	require.ErrorContains(t, err, "unknown flag: --no-such-flag")
	assert.NoDirExists(t, c.Dir)
	assert.False(t, rundir.Owned(c.Run))
}

// fakeKind is a kind program that records its arguments.
const fakeKind = `#!/bin/sh
echo "$*" >> LOG
if [ "$1" = create ]; then while [ $# -gt 0 ]; do [ "$1" = --kubeconfig ] && echo made > "$2"; shift; done; fi
`

// kindConfig returns a cluster that uses fakeKind, and the file with the recorded arguments.
func kindConfig(t *testing.T) (keeper.Config, string) {
	dir := short(t)
	notes, kind := filepath.Join(dir, "notes"), filepath.Join(dir, "kind")
	program.Script(t, kind, strings.ReplaceAll(fakeKind, "LOG", notes))
	return keeper.Config{
		Run: filepath.Join(dir, "run"), Dir: filepath.Join(dir, "state"), Kind: &keeper.Kind{Program: kind, Image: "kindest/node:v1"},
	}, notes
}

func noted(t *testing.T, notes string) []string {
	content, err := os.ReadFile(notes)
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

func TestKindClusterIsDeleted(t *testing.T) {
	t.Parallel()
	c, notes := kindConfig(t)
	k, err := keeper.Start(t.Context(), os.Args[0], c, io.Discard)
	require.NoError(t, err)
	made, err := os.ReadFile(k.Kubeconfig)
	require.NoError(t, err)
	assert.Equal(t, "made\n", string(made))
	before := noted(t, notes)
	require.Len(t, before, 2)
	const deleted = "delete cluster --name stoker-test"
	assert.Equal(t, deleted, before[0], "the cluster of an earlier run must be deleted first")
	assert.True(t, strings.HasPrefix(before[1], "create cluster --name stoker-test --image kindest/node:v1 "), before[1])
	require.NoError(t, k.Stop())
	assert.Equal(t, append(before, deleted), noted(t, notes))
}

func TestKindClusterWithKilledKeeper(t *testing.T) {
	t.Parallel()
	c, notes := kindConfig(t)
	k, err := keeper.Start(t.Context(), os.Args[0], c, io.Discard)
	require.NoError(t, err)
	require.NoError(t, k.Stay())
	killKeeper(t, c)
	require.Len(t, noted(t, notes), 2)
	require.NoError(t, keeper.Down(t.Context(), c.Run))
	assert.Equal(t, "delete cluster --name stoker-test", noted(t, notes)[2])
	assert.NoDirExists(t, c.Dir)
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

func TestKindClusterWithKilledStarter(t *testing.T) {
	t.Parallel()
	c, notes := kindConfig(t)
	holdAndKill(t, c)
	assert.Eventually(t, func() bool { return !rundir.Owned(c.Run) }, 30*time.Second, 10*time.Millisecond)
	assert.Len(t, noted(t, notes), 3)
}

func TestControlPlaneWithKilledStarter(t *testing.T) {
	t.Parallel()
	c := controlConfig(t)
	holdAndKill(t, c)
	assert.Eventually(t, func() bool { return !rundir.Owned(c.Run) }, 30*time.Second, 10*time.Millisecond)
	assert.NoDirExists(t, c.Dir)
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

// hold is the main function of this process.
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
