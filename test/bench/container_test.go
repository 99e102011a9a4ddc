package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/bench/cgroup"
)

// script is a contestant that runs a shell script.
type script struct {
	*fetchOnly
	text string
}

func (s script) sync(ctx context.Context) (sample, error) {
	return measure(ctx, command{s.dir, os.Environ(), append(slices.Clone(s.wrap), "sh", "-c", s.text)})
}

func inContainer(t *testing.T, limit int64, text string) *confined {
	t.Helper()
	room, err := cgroup.NewMemoryLimit(limit)
	if err != nil {
		t.Skipf("no container with a memory limit can be made here: %v", err)
	}
	c := &confined{script{&fetchOnly{dir: t.TempDir(), wrap: room.Wrap()}, text}, room}
	t.Cleanup(func() {
		require.NoError(t, c.close())
		assert.NoDirExists(t, room.Dir)
	})
	return c
}

// hold allocates about thirty megabytes.
const hold = `x=$(head -c 15000000 /dev/zero | tr "\0" x); y=$x$x; echo ${#y} >/dev/null`

func TestContainerMemoryLimit(t *testing.T) {
	s, err := inContainer(t, 16<<20, hold).sync(t.Context())
	require.NoError(t, err, "a killed program must be a result, not an error")
	assert.True(t, s.killed)
}

func TestContainerWithinLimit(t *testing.T) {
	s, err := inContainer(t, 256<<20, hold).sync(t.Context())
	require.NoError(t, err)
	assert.False(t, s.killed)
}

func TestContainerPageCache(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "stoker-bench-") // on disk: files in a temporary file system would count as memory
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	s, err := inContainer(t, 16<<20, "cd "+dir+" && head -c 60000000 /dev/zero > file && cat file > copy").sync(t.Context())
	require.NoError(t, err)
	assert.False(t, s.killed)
}

func TestContainerExitCode(t *testing.T) {
	s, err := inContainer(t, 256<<20, "exit 3").sync(t.Context())
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 3, exit.ExitCode())
	assert.False(t, s.killed)
}

func TestThrottledTimeIsMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		milli     int64
		throttled bool
	}{"a hundredth of a processor": {10, true}, "a hundred processors": {100_000, false}} {
		t.Run(name, func(t *testing.T) {
			room, err := cgroup.NewCPULimit(c.milli)
			if err != nil {
				t.Skipf("no container with a limit on CPU can be made here: %v", err)
			}
			defer func() { assert.NoError(t, room.Close()) }()
			_, err = measure(t.Context(), command{t.TempDir(), os.Environ(), append(room.Wrap(), "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")})
			require.NoError(t, err)
			throttled, err := room.Throttled()
			require.NoError(t, err)
			assert.Equal(t, c.throttled, throttled > 0, "%s", throttled)
		})
	}
}
