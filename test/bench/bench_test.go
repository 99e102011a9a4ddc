package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
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

// TestOtherContestants runs every case on size T without the agent. The files on disk must be those of the commit.
func TestOtherContestants(t *testing.T) {
	kubetest.NotShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	work := t.TempDir()
	tiny := sizes[0]
	generated, err := repository.Generate(ctx, t.TempDir(), tiny.Size)
	require.NoError(t, err)
	remote, err := repository.NewRemote(ctx, generated, filepath.Join(work, "remote"), gitserver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, remote.Server.Close()) }()
	live := filepath.Join(work, "live")
	b := newBench(tiny, remote, work, log.New(io.Discard, "", 0))
	b.contestants = []contestant{b.fetchOnly()}
	if b.hasRsync() {
		b.contestants = append(b.contestants, b.checkout())
	}
	all := results{}
	s := settings{cases: cases, rounds: 2, sizes: []size{tiny}}
	require.NoError(t, b.run(ctx, s, all))

	for _, c := range cases {
		samples := all[key{"T", c.name, fetch}]
		if c.lost == loseManifest {
			assert.Empty(t, samples, "%s: git has no manifest", c.name)
			continue
		}
		if c.only != "" {
			assert.Empty(t, samples, "%s: the case is only for %s", c.name, c.only)
			continue
		}
		require.Len(t, samples, 2, c.name)
		for _, s := range samples {
			switch c.name {
			case "nothing":
				assert.LessOrEqual(t, s.pack, int64(32), "an unchanged repository must give an empty pack")
			case "one", "merge":
				assert.Positive(t, s.changed)
				assert.Less(t, s.pack, s.changed+1000, "a thin pack must contain little besides the file")
				assert.Equal(t, 1, s.fetches)
			default:
				assert.Positive(t, s.pack, c.name)
			}
		}
	}
	if len(b.contestants) == 2 {
		at := b.commits[b.checkout().home()]
		list, err := repository.GitOutput(ctx, remote.Dir, nil, "ls-tree", "-r", "--name-only", at, repository.Mapped)
		require.NoError(t, err)
		for name := range strings.SplitSeq(list, "\n") {
			want, err := exec.CommandContext(ctx, "git", "-C", remote.Dir, "cat-file", "blob", at+":"+name).Output()
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(live, strings.TrimPrefix(name, repository.Mapped)))
			require.NoError(t, err)
			assert.Equal(t, want, got, name)
		}
	}
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
