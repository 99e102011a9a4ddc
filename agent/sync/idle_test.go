//go:build !race

// These tests simulate an hour of two gateways step by step, and repeat the tests of the package. `make test-cluster` runs them without the
// race detector, which would only slow them down.

package sync_test

import (
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/trees"
)

// realTree is the files of a real gateway, as they are in git.
type realTree struct {
	dir      string
	options  simulator.Options
	mappings []v1alpha1.Mapping
	posts    map[string]int         // expected scans of the first sync, by route
	edit     func(path string) bool // reports whether the test can change the file
	change   func(string) string    // returns the changed content of such a file
}

// realTrees returns a tree for 8.3, with configuration files, and one for 8.1, scanned through the module.
func realTrees(t *testing.T) map[string]realTree {
	t.Helper()
	return map[string]realTree{"8.3": {
		dir: trees.Gateway83(t),
		mappings: []v1alpha1.Mapping{
			{Source: "projects", Destination: "projects"}, {Source: "config", Destination: "config"}},
		posts:  map[string]int{scanProjects: 1, scanConfig: 1},
		edit:   func(path string) bool { return strings.HasSuffix(path, "/page-config/config.json") },
		change: func(s string) string { return strings.Replace(s, "{", "{\"stoker\": true,", 1) },
	}, "8.1": {
		dir: trees.Project81(t), options: simulator.Options{Version: "8.1.44", ScanModule: true},
		mappings: []v1alpha1.Mapping{{Source: ".", Destination: "projects/line"}},
		posts:    map[string]int{"POST /data/project-scan-endpoint/scan": 1},
		edit:     func(path string) bool { return strings.HasSuffix(path, "/code.py") },
		change:   func(s string) string { return s + "\n# one line more" },
	}}
}

// A gateway scans on its own timer and rewrites files for an hour. None of this is drift, a conflict, or a reason to write or scan.
// Then a commit with one changed file changes only that resource, even if the gateway had rewritten it.
func TestIdleHour(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates an hour")
	}
	for version, tree := range realTrees(t) {
		t.Run(version, func(t *testing.T) {
			files := trees.Files(t, tree.dir)
			editable := slices.DeleteFunc(slices.Sorted(maps.Keys(files)), func(path string) bool { return !tree.edit(path) })
			require.NotEmpty(t, editable)
			edit := editable[0]
			tree.options.ProjectsTimer = 300 * time.Second
			b := newBench(t, tree.options)
			b.engine.MaxBlob = 0
			b.target.Profile.Mappings = tree.mappings
			// These files would revoke the token of the simulated gateway.
			b.target.Profile.ExcludePatterns = []string{"config/resources/*/ignition/security-properties/", "config/resources/*/ignition/api-token/"}
			b.push(gitserver.Files(files))
			b.gw.Requests.Reset()
			b.synced()
			for route, n := range tree.posts {
				assert.Equal(t, n, b.gw.Requests.Count(route), route)
			}
			require.Empty(t, b.gw.Data.LoadErrors())
			lost, _, err := b.engine.LostAndFound()
			require.NoError(t, err)

			b.hour()
			kept, _, err := b.engine.LostAndFound()
			require.NoError(t, err)
			assert.Equal(t, lost, kept, "no file is moved to lost+found")
			assert.GreaterOrEqual(t, b.gw.Scans.Timed(), 12, "the gateway scans every five minutes")
			assert.Empty(t, b.gw.Data.LoadErrors())

			b.gw.Requests.Reset()
			b.push(gitserver.Write(edit, tree.change(files[edit])))
			r := b.synced()
			assert.LessOrEqual(t, r.Files.Modified, 3, "the file, and its resource.json and thumbnail if the gateway had rewritten them")
			assert.Zero(t, r.Files.Saved+r.Files.Kept+r.Files.Added+r.Files.Deleted)
			posts := 0
			for route := range tree.posts {
				posts += b.gw.Requests.Count(route)
			}
			assert.Equal(t, 1, posts, "one scan of the changed tree")
		})
	}
}

// hour simulates one hour in steps of the default sync period. Each step checks for drift and, as with driftPolicy repair, repairs
// what it finds.
func (b *bench) hour() {
	b.t.Helper()
	const period = 30 * time.Second
	b.gw.Requests.Reset()
	began, repairs := time.Now(), 0
	for step := range int(time.Hour / period) {
		require.NoError(b.t, b.gw.Noise.Make(simulator.Noises[step%len(simulator.Noises)]))
		require.NoError(b.t, b.gw.Advance(period))
		drift, err := b.engine.Drift(b.t.Context(), step%20 == 0)
		require.NoError(b.t, err)
		if !assert.Zero(b.t, drift.Files, "step %d: %v", step, drift.Paths) {
			repairs++
			b.target.Repair = true
		}
		r := b.sync()
		require.Equal(b.t, v1alpha1.GatewaySynced, r.Phase, r.String())
		b.target.Repair = false
		assert.False(b.t, r.Wrote(), "step %d: %s", step, r.Message)
	}
	assert.Zero(b.t, repairs)
	assert.GreaterOrEqual(b.t, b.writtenSince(began), 5, "the gateway has rewritten files")
	for _, q := range b.gw.Requests.List() {
		assert.NotEqual(b.t, http.MethodPost, q.Method, "%s %s", q.Method, q.Path)
	}
	// A repair must not write either.
	b.target.Repair = true
	r := b.synced()
	b.target.Repair = false
	require.NotNil(b.t, r.Changes)
	for _, c := range r.Changes.List {
		assert.Contains(b.t, []plan.Op{plan.Adopt, plan.Release}, c.Op, c.Path)
	}
}

// writtenSince counts the files of projects that were written since began.
func (b *bench) writtenSince(began time.Time) (n int) {
	b.t.Helper()
	require.NoError(b.t, filepath.WalkDir(filepath.Join(b.data, "projects"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.ModTime().After(began) {
			n++
		}
		return err
	}))
	return n
}

// ofGit matches tests of git, the store and approvals, whose gateway requests other tests cover, and the simulated hour.
const ofGit = "^(Fuzz|TestIdleHour|TestDriftCheck|TestLostStore|TestMassDeletionApproval)"

// An unknown property of the real gateway must not matter. Every test must pass whatever the unknowns are. By default,
// the package runs once more with half of them flipped, so that all pairs of values occur, though not in every test.
func TestUnknowns(t *testing.T) {
	if os.Getenv(flipEnv) != "" {
		t.Skip("this is one of the runs")
	}
	if testing.Short() {
		t.Skip("repeats the package's tests")
	}
	runs := []string{flipSample}
	if os.Getenv(fullEnv) != "" {
		for field := range reflect.TypeFor[simulator.Unknowns]().Fields() {
			runs = append(runs, field.Name)
		}
	}
	for _, flip := range runs {
		t.Run(flip, func(t *testing.T) {
			t.Parallel() // the runs also wait for disks and timers
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.short", "-test.failfast", "-test.timeout=15m", "-test.skip="+ofGit)
			cmd.Env = append(os.Environ(), flipEnv+"="+flip)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
