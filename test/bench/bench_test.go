package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/bench/cgroup"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMeasureCountsChildProcesses(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc to read memory from")
	}
	// A grandchild process holds thirty megabytes long enough for a late sample.
	script := `sh -c 'x=$(head -c 15000000 /dev/zero | tr "\0" x); y=$x$x; echo ${#y} >/dev/null; sleep 1; true'`
	s, err := measure(t.Context(), command{t.TempDir(), os.Environ(), []string{"sh", "-c", script + "; true"}})
	require.NoError(t, err)
	assert.Greater(t, s.anon, int64(20<<20))
	assert.Positive(t, s.cpu)
	assert.Positive(t, s.wall)
}

func TestFailedCommandOutput(t *testing.T) {
	_, err := measure(t.Context(), command{t.TempDir(), os.Environ(), []string{"sh", "-c", "echo broken >&2; exit 3"}})
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 3, exit.ExitCode())
	assert.ErrorContains(t, err, "broken")
}

// TestBench: `bench` on size T runs every case with the real agent, and removes its files.
func TestBench(t *testing.T) {
	kubetest.NotShort(t)
	work := t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{"-sizes", "T", "-n", "1", "-cache", t.TempDir(), "-work", work}, &out, io.Discard)
	require.NoError(t, err)
	for _, c := range cases {
		assert.Contains(t, out.String(), "| "+c.title+" ")
	}
	assert.Contains(t, out.String(), "| T: store lost, nothing changed: the ref advertisement only")
	left, err := os.ReadDir(work)
	require.NoError(t, err)
	assert.Empty(t, left, "the work directories must be removed")
}

// TestProposals: `bench proposals` on size T meets its goals and removes its files.
func TestProposals(t *testing.T) {
	kubetest.NotShort(t)
	work := t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{"proposals", "-sizes", "T", "-n", "1", "-idle", "6s", "-cache", t.TempDir(), "-work", work}, &out, io.Discard)
	require.NoError(t, err)
	for _, c := range proposalCases {
		assert.Contains(t, out.String(), "| "+c.title+" ")
	}
	for _, goal := range []string{"nothing happens: no request", "one view saved: at most 64 KiB", "the agent: at most"} {
		assert.Regexp(t, `\| T: `+goal+`.*\| met +\|`, out.String())
	}
	assert.Contains(t, out.String(), "| 0 writes, 1 scans, 1 report, ", "a sync of the merged save must find its files on the disk")
	left, err := os.ReadDir(work)
	require.NoError(t, err)
	assert.Empty(t, left, "the work directories must be removed")
}

// TestSafe: `bench safe` on size T meets its goals and removes its files.
func TestSafe(t *testing.T) {
	kubetest.NotShort(t)
	work := t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{"safe", "-sizes", "T", "-n", "2", "-cache", t.TempDir(), "-work", work}, &out, io.Discard)
	require.NoError(t, err)
	for _, c := range safeCases {
		assert.Contains(t, out.String(), "| "+c.title+" ")
	}
	for _, goal := range []string{"T: restores: no request for a pack", "T: 5 snapshots of one file", "T: nothing enabled", "T: the agent: at most"} {
		assert.Regexp(t, `\| `+goal+`.*\| met +\|`, out.String())
	}
	left, err := os.ReadDir(work)
	require.NoError(t, err)
	assert.Empty(t, left, "the work directories must be removed")
}

func TestObservedGoals(t *testing.T) {
	for name, c := range map[string]struct {
		took        time.Duration
		bytes       int
		memory      int64
		own, others int
		missed      string
	}{
		"good":           {20 * time.Millisecond, 60 << 10, 30 << 20, 30, 0, ""},
		"slow":           {time.Second, 60 << 10, 30 << 20, 30, 0, "the fleet: at most 200 ms"},
		"large":          {20 * time.Millisecond, 1 << 20, 30 << 20, 30, 0, "the fleet: at most 200 ms"},
		"memory":         {20 * time.Millisecond, 60 << 10, 100 << 20, 30, 0, "anonymous memory"},
		"memory unknown": {20 * time.Millisecond, 60 << 10, 0, 30, 0, "anonymous memory"},
		"requests":       {20 * time.Millisecond, 60 << 10, 30 << 20, 30, 2, "no request besides"},
		"lease":          {20 * time.Millisecond, 60 << 10, 30 << 20, 60, 0, "requests for its Lease"},
	} {
		t.Run(name, func(t *testing.T) {
			p := page{name: "the fleet", limit: pageTime}
			p.add(c.took, c.bytes)
			var out bytes.Buffer
			require.NoError(t, writeObserved(&out, 1000, 1, time.Minute, []page{p}, c.memory, c.own, c.others))
			var missed []string
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, "**missed**") {
					missed = append(missed, line)
				}
			}
			if c.missed == "" {
				assert.Empty(t, missed)
				return
			}
			require.Len(t, missed, 1)
			assert.Contains(t, missed[0], c.missed)
		})
	}
}

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

func TestContainer(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "stoker-bench-") // on disk: files in a temporary file system would count as memory
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	for name, c := range map[string]struct {
		limit  int64
		text   string
		killed bool
		exit   int
	}{
		"memory beyond the limit": {16 << 20, hold, true, 0},
		"memory within the limit": {256 << 20, hold, false, 0},
		"page cache":              {16 << 20, "cd " + dir + " && head -c 60000000 /dev/zero > file && cat file > copy", false, 0},
		"exit code":               {256 << 20, "exit 3", false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := inContainer(t, c.limit, c.text).sync(t.Context())
			assert.Equal(t, c.killed, s.killed)
			if c.exit == 0 {
				require.NoError(t, err, "a killed program must be a result, not an error")
				return
			}
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, c.exit, exit.ExitCode())
		})
	}
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
