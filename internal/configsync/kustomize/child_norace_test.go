//go:build linux && !race

package kustomize_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/failure"
)

// quadratic returns a kustomization whose patch merges a list of n entries into another one, which takes a time of n squared.
func quadratic(n int) tree {
	list := func(prefix string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{name: %s%d},", prefix, i)
		}
		return strings.Replace(statefulSet, "          envFrom:", "          env: ["+b.String()+"]\n          envFrom:", 1)
	}
	return tree{"k/kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml}]", "k/a.yaml": list("a"), "k/p.yaml": list("b")}
}

// G8: a small kustomization that takes minutes, or much memory, ends at a bound, and the error names that bound.
func TestChildIsBounded(t *testing.T) {
	t.Run("CPU", func(t *testing.T) {
		_, err := build(t.Context(), quadratic(6000), "k")
		assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		assert.ErrorContains(t, err, "took more than 5s of CPU time")
	})
	t.Run("memory", func(t *testing.T) {
		// Bytes of generated objects need little CPU time, so a slow machine reaches the bound of memory first, too.
		list := ""
		for i := range 70 {
			list += fmt.Sprintf("- {name: m%d, files: [big.txt]}\n", i)
		}
		files := tree{"k/big.txt": strings.Repeat("x", 900_000), "k/kustomization.yaml": "configMapGenerator:\n" + list}
		_, err := build(t.Context(), files, "k")
		assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		assert.ErrorContains(t, err, "memory") // the runtime may also end with another signal
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := failure.New(v1alpha1.ReasonLimitExceeded, "the run was stopped")
		done := make(chan error, 1)
		go func() {
			_, err := build(ctx, quadratic(6000), "k")
			done <- err
		}()
		require.Eventually(t, func() bool { return len(children(t)) == 1 }, time.Minute, time.Millisecond)
		cancel(stopped)
		require.ErrorIs(t, <-done, stopped)
		assert.Empty(t, children(t), "the process must be gone")
	})
	t.Run("deadline before the bound of CPU time", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, failure.New(v1alpha1.ReasonLimitExceeded, "too slow"))
		defer cancel()
		_, err := build(ctx, quadratic(6000), "k")
		assert.True(t, failure.Is(err, v1alpha1.ReasonProgressing), "%v", err)
		assert.ErrorContains(t, err, "of CPU time before its deadline; the next run tries again: if that repeats, raise the CPU limit of stoker config run")
	})
	t.Run("environment", func(t *testing.T) {
		t.Setenv("STOKER_TEST_SECRET", "S3CR3T")
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			_, _ = build(ctx, quadratic(6000), "k")
		}()
		var env []byte
		require.Eventually(t, func() bool {
			for _, pid := range children(t) {
				env, _ = os.ReadFile(filepath.Join("/proc", pid, "environ"))
			}
			return len(env) > 0
		}, time.Minute, time.Millisecond)
		cancel()
		<-done
		assert.NotContains(t, string(env), "S3CR3T")
	})
}

// children returns the processes that this one has started as builders.
func children(t *testing.T) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, after, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(after); string(command) == "stoker-kustomize\x00" && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// G8: a namespace has at most one builder, so that one namespace cannot use both.
func TestOneBuilderForEachOwner(t *testing.T) {
	first, err := builder.NewBuilder(t.Context(), "line")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = builder.NewBuilder(ctx, "line")
	require.ErrorIs(t, err, context.Canceled)
	other, err := builder.NewBuilder(t.Context(), "plant")
	require.NoError(t, err)
	_, err = builder.NewBuilder(ctx, "third")
	require.ErrorIs(t, err, context.Canceled)
	other.Close()
	first.Close()
	third, err := builder.NewBuilder(t.Context(), "third")
	require.NoError(t, err)
	third.Close()
	again, err := builder.NewBuilder(t.Context(), "line")
	require.NoError(t, err)
	again.Close()
}
