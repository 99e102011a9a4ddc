package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/test/gitserver"
)

var tiny = sizes[0]

func generated(t *testing.T) string {
	t.Helper()
	dir, err := generate(t.Context(), t.TempDir(), tiny)
	require.NoError(t, err)
	return dir
}

func gitLines(t *testing.T, dir string, args ...string) []string {
	t.Helper()
	out, err := gitOutput(t.Context(), dir, nil, args...)
	require.NoError(t, err)
	return strings.Split(out, "\n")
}

func TestTheSameRepositoryIsMadeEveryTime(t *testing.T) {
	refs := func(dir string) []string { return gitLines(t, dir, "for-each-ref") }
	assert.Equal(t, refs(generated(t)), refs(generated(t)))
}

func TestRepositoryCache(t *testing.T) {
	cache := t.TempDir()
	first, err := generate(t.Context(), cache, tiny)
	require.NoError(t, err)
	mark := filepath.Join(first, "mark")
	require.NoError(t, os.WriteFile(mark, nil, 0o644))
	second, err := generate(t.Context(), cache, tiny)
	require.NoError(t, err)
	assert.Equal(t, first, second)
	assert.FileExists(t, mark)
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	assert.Len(t, left, 1, "nothing half made stays")
}

func TestRepositoryShape(t *testing.T) {
	dir := generated(t)
	files := gitLines(t, dir, "ls-tree", "-r", "--name-only", baseRef, mapped)
	assert.Len(t, files, tiny.files)
	changed := func(commit string) int {
		return len(gitLines(t, dir, "diff-tree", "-r", "--name-only", "--no-commit-id", commit+"^", commit))
	}
	assert.Equal(t, 1, changed("refs/bench/one/1"))
	assert.Equal(t, 1, changed("refs/bench/merge/9"))
	assert.Equal(t, 1, changed("refs/bench/late/9"))
	assert.Greater(t, changed("refs/bench/hundred/1"), 20)
	side := gitLines(t, dir, "rev-list", "-1", "--parents", "refs/bench/merge/1")
	assert.Len(t, strings.Fields(side[0]), 3, "a merge")
	assert.Equal(t, gitLines(t, dir, "rev-parse", "refs/bench/root"), gitLines(t, dir, "merge-base", "refs/bench/merge/1^1", "refs/bench/merge/1^2"))
	assert.Equal(t, gitLines(t, dir, "rev-parse", baseRef), gitLines(t, dir, "rev-parse", "refs/bench/one/1^"))
}

func TestGeneratedJSONIsValid(t *testing.T) {
	w := newWriter(1, 3000)
	for _, p := range layout(500) {
		before := w.last
		content := w.content(p)
		if strings.HasSuffix(p.name, ".json") {
			require.True(t, json.Valid([]byte(content)), "%s\n%s", p.name, content)
		}
		if strings.HasSuffix(p.name, "resource.json") {
			var meta struct {
				Files      []string
				Attributes map[string]any
			}
			require.NoError(t, json.Unmarshal([]byte(content), &meta))
			assert.NotNil(t, meta.Attributes)
			assert.NotEmpty(t, meta.Files)
			if p.kind == resourceFile {
				signed, err := resource.ParseSigned([]byte(content))
				require.NoError(t, err)
				sum, err := signed.Signature(resource.Form83, func(to io.Writer, _ string) error { _, err := io.WriteString(to, before); return err })
				require.NoError(t, err)
				assert.Equal(t, sum, signed.Stored(), "a gateway would take it as it is")
			}
		}
	}
}

func TestLayoutNamesEveryFileOnce(t *testing.T) {
	var names []string
	for _, p := range layout(20_000) {
		names = append(names, p.name)
	}
	slices.Sort(names)
	assert.Len(t, slices.Compact(names), 20_000)
}

func TestMeasureSeesTheWholeTree(t *testing.T) {
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

// Runs every case with only the peers on the smallest repository. The files on disk must be
// those of the commit.
func TestThePeersTakeTurnsThroughEveryCase(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the bench")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	work := t.TempDir()
	remote, err := newRemote(ctx, generated(t), filepath.Join(work, "remote"), gitserver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, remote.server.Close()) }()
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
		if c.lost == loseManifest || c.only != "" {
			assert.Empty(t, samples, "git has no manifest to lose, and is not the one that is asked for")
			continue
		}
		require.Len(t, samples, 2, c.name)
		for _, s := range samples {
			switch c.name {
			case "nothing":
				assert.LessOrEqual(t, s.pack, int64(32), "an empty pack")
			case "one", "merge":
				assert.Positive(t, s.changed)
				assert.Less(t, s.pack, s.changed+1000, "a thin pack holds little besides the file")
				assert.Equal(t, 1, s.fetches)
			default:
				assert.Positive(t, s.pack, c.name)
			}
		}
	}
	if len(b.contestants) == 2 {
		at := b.commits[b.checkout().home()]
		for _, name := range gitLines(t, remote.dir, "ls-tree", "-r", "--name-only", at, mapped) {
			want, err := exec.CommandContext(ctx, "git", "-C", remote.dir, "cat-file", "blob", at+":"+name).Output()
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(live, strings.TrimPrefix(name, mapped)))
			require.NoError(t, err)
			assert.Equal(t, want, got, name)
		}
	}
}

// Runs the whole bench with the real agent on the smallest repository.
// The plots in the documentation are those of its tables.
func TestPlotsOfTheDocumentation(t *testing.T) {
	const dir = "../../docs/internals"
	page, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	require.NoError(t, err)
	drawn := drawings(string(page))
	require.Len(t, drawn, 2, "sizes M and L")
	for name, svg := range drawn {
		t.Run(name, func(t *testing.T) {
			is, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.Equal(t, svg, string(is), "run go run ./test/bench plot docs/internals/performance.md")
			assert.NoError(t, xml.Unmarshal(is, new(struct{})))
			assert.Contains(t, string(page), "]("+name+")")
		})
	}
}

func TestTheBenchRunsFromEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for seconds")
	}
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
	assert.Empty(t, left, "the work directories are removed")
}

// Runs what measures proposals on the smallest repository.
func TestProposals(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for half a minute")
	}
	work := t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{"proposals", "-sizes", "T", "-n", "1", "-idle", "6s", "-cache", t.TempDir(), "-work", work}, &out, io.Discard)
	require.NoError(t, err)
	for _, c := range proposalCases {
		assert.Contains(t, out.String(), "| "+c.title+" ")
	}
	for _, goal := range []string{"nothing happens: no request", "one view saved: at most 64 KiB", "the save merged: no write", "the agent: at most"} {
		assert.Regexp(t, `\| T: `+goal+`.*\| met +\|`, out.String())
	}
	left, err := os.ReadDir(work)
	require.NoError(t, err)
	assert.Empty(t, left, "the work directories are removed")
}

// Runs what measures safe changes on the smallest repository.
func TestSafe(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for half a minute")
	}
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
	assert.Empty(t, left, "the work directories are removed")
}
