package sync_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

var (
	noon    = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	atNight = noon.Add(11 * time.Hour)
)

// gated is a bench at noon that has delivered a commit, and whose target is another commit, which only the night allows.
type gated struct {
	*bench
	first, second plan.ID
	now           time.Time
}

func newGated(t *testing.T) *gated {
	t.Helper()
	g := &gated{bench: newSnapshotBench(t, simulator.Options{}), now: noon}
	g.engine.Now = func() time.Time { return g.now }
	g.target.Facts.CRName = "plant"
	g.target.Profile.Windows = []v1alpha1.MaintenanceWindow{{Name: "nights", Schedule: "0 22 * * *", Duration: "8h", Gateways: []string{"area-*"}}}
	g.target.Force = "in October" // the first sync carries this request out, so that it exempts no later one
	g.first = g.push(firstCommit()...)
	g.synced() // the first sync of a gateway does not wait
	g.second = g.push(gitserver.Write(view, `{"one": 2}`))
	return g
}

// report returns what the SyncReport says.
func (g *gated) report() record.Record {
	return record.Record{Ref: "main", Commit: g.first, Force: "in October"}
}

// waits checks that the target waits for its window, and that no file has changed.
func (g *gated) waits() {
	g.t.Helper()
	g.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
	assert.Equal(g.t, `{"one": 1}`, g.read(view))
}

// F30 of docs/internals/threats.md: files of .stoker exempt no sync from a maintenance window if the report of the gateway says otherwise. Without a
// report, they are all the evidence there is.
func TestGatesNeedEvidence(t *testing.T) {
	stoker := func(g *gated, name string) string { return filepath.Join(g.data, ".stoker", name) }
	for name, forge := range map[string]func(t *testing.T, g *gated){
		"no manifest": func(t *testing.T, g *gated) { require.NoError(t, os.Remove(stoker(g, "manifest"))) },
		"a damaged manifest": func(t *testing.T, g *gated) {
			require.NoError(t, os.WriteFile(stoker(g, "manifest"), []byte("x"), 0o600))
		},
		"no note about a forced sync": func(t *testing.T, g *gated) {
			require.NoError(t, os.Remove(stoker(g, "note-force-sync")))
		},
		"a manifest of the target, and a repair": func(t *testing.T, g *gated) {
			g.now = g.now.Add(11 * time.Hour)
			g.synced()
			manifest, err := os.ReadFile(stoker(g, "manifest"))
			require.NoError(t, err)
			second := g.target.Commit
			g.target.Commit, g.target.RequestedRollback = g.first, true
			g.synced()
			g.target.Commit, g.target.RequestedRollback, g.target.Repair = second, false, true
			g.now = g.now.Add(13 * time.Hour)
			require.NoError(t, g.engine.Close())
			require.NoError(t, os.WriteFile(stoker(g, "manifest"), manifest, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGated(t)
			require.NoError(t, g.engine.Close())
			forge(t, g)
			g.restart(t.TempDir())
			require.NoError(t, g.engine.SetRecord(g.report()))
			g.waits()
			require.NoError(t, g.engine.Close())
			g.waits() // the process remembers

			g.now = time.Date(2026, 11, 26, 23, 0, 0, 0, time.UTC)
			g.synced()
			assert.Equal(t, `{"one": 2}`, g.read(view))
		})
		t.Run(name+", without a report", func(t *testing.T) {
			g := newGated(t)
			require.NoError(t, g.engine.Close())
			forge(t, g)
			g.restart(t.TempDir())
			g.synced()
			assert.Equal(t, `{"one": 2}`, g.read(view))
		})
	}
	t.Run("a new force-sync request counts", func(t *testing.T) {
		g := newGated(t)
		g.restart(t.TempDir())
		require.NoError(t, g.engine.SetRecord(g.report()))
		g.target.Force = "now"
		g.synced()
	})
	t.Run("a gateway that never reported is new", func(t *testing.T) {
		g := newGated(t)
		require.NoError(t, g.engine.Close())
		require.NoError(t, os.Remove(stoker(g, "manifest")))
		g.restart(t.TempDir())
		require.NoError(t, g.engine.SetRecord(record.Record{}))
		g.synced()
	})
	t.Run("a record of the target, and files of another commit", func(t *testing.T) {
		g := newGated(t)
		g.target.BeforeStart = true
		// sequence: the second start finds the manifest that the first one has corrected
		for range 2 {
			g.restart(t.TempDir())
			require.NoError(t, g.engine.SetRecord(record.Record{Ref: "main", Commit: g.second}))
			g.waits()
			require.NoError(t, g.engine.Close())
		}
	})
	t.Run("a new volume gets what was delivered before", func(t *testing.T) {
		g := newGated(t)
		require.NoError(t, g.engine.Close())
		require.NoError(t, os.RemoveAll(stoker(g, "")))
		require.NoError(t, os.RemoveAll(filepath.Join(g.data, "projects", "line")))
		g.restart(t.TempDir())
		require.NoError(t, g.engine.SetRecord(g.report()))
		g.target.NewVolume = true
		g.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMaintenanceWindow)
		assert.Empty(t, g.read(view))
		second := g.target.Commit
		g.target.Commit = g.first
		g.synced()
		g.target.Commit = second
		g.waits()
	})
}

// C14 of docs/internals/threats.md: git confirms a commit, unless a sync of this gateway wrote it.
func TestAdmission(t *testing.T) {
	b := newBench(t, simulator.Options{})
	asked := 0
	b.target.Admit = func(context.Context) (string, error) {
		asked++
		return b.target.Name, nil
	}
	first := b.push(firstCommit()...)
	b.synced()
	assert.Equal(t, 1, asked)

	b.target.Ref, b.target.Name, b.target.Repair = "release", "refs/heads/release", true
	b.put(view, `{"drift": 1}`)
	b.synced()
	assert.Equal(t, `{"one": 1}`, b.read(view))
	assert.Equal(t, 1, asked, "no file depends on the ref")

	second := b.push(gitserver.Write(view, `{"one": 2}`))
	require.NoError(t, b.engine.SetRecord(record.Record{Ref: "release", Commit: second}))
	b.synced()
	assert.Equal(t, 2, asked, "the manifest has the commit only because a status names it")
	assert.Equal(t, []plan.ID{first}, b.engine.Dir().Manifest().Header().Earlier)
}

// stokerFiles are the rows of the table in docs/internals/threats.md, with their worst content. The content "link" is a link that leads
// outside, and "dir" a directory with a file.
var stokerFiles = map[string]func(g *gated) string{
	"manifest":        func(*gated) string { return "stokerm1" },
	"journal":         forgedJournal,
	"undo":            forgedJournal,
	"staging":         func(*gated) string { return "link" },
	"areas":           func(*gated) string { return "../outside\n/etc\nprojects/../..\n" },
	"modes":           func(*gated) string { return "dir" },
	"lost+found":      func(*gated) string { return "link" },
	"snapshots":       func(*gated) string { return "link" },
	"backups":         func(*gated) string { return "link" },
	"audit.jsonl":     func(*gated) string { return `{"schema":1,"gateway":"line-7","reason":"Synced"}` + "\n" },
	"history":         func(*gated) string { return "link" },
	"scratch":         func(*gated) string { return "dir" },
	"restore.new":     func(*gated) string { return "dir" },
	"restore.path":    func(*gated) string { return "../outside/file" },
	"lock":            func(*gated) string { return strings.Repeat("x", 1<<20) },
	"note-force-sync": func(*gated) string { return "" },
	"note-restored": func(g *gated) string {
		return `{"request":"x","commit":"` + g.first.String() + `","snapshot":"x","done":true}`
	},
	"note-unloaded":        func(*gated) string { return `{"fresh":true,"projects":["` + strings.Repeat("x", 1000) + `"]}` },
	"note-gateway-ran":     func(g *gated) string { return g.target.Start },
	"note-gateway-version": func(*gated) string { return "99.99.99" },
	"note-standby":         func(*gated) string { return "Backup" },
	"note-pair-known":      func(*gated) string { return view + "\n" + db + "/config.json\n" },
	"note-pair-brought":    func(*gated) string { return view + "\n" + db + "/config.json\n" },
	"note-api-key":         func(*gated) string { return "another pod" },
	"note-startup":         func(*gated) string { return `{"wait":true,"deadline":9223372036854775807}` },
	"note-proposal":        func(*gated) string { return `{"branch":"main","number":1}` },
}

// forgedJournal is the valid journal of a sync that delivers the target completely and has no file left to move. It follows the manifest
// that is there.
func forgedJournal(g *gated) string {
	g.t.Helper()
	f, err := os.Open(filepath.Join(g.data, ".stoker", format.ManifestFile))
	require.NoError(g.t, err)
	defer func() { _ = f.Close() }()
	m, err := format.OpenManifest(f, 1<<20)
	require.NoError(g.t, err)
	h := m.Header()
	h.Commit, h.Complete, h.Earlier = g.target.Commit, true, []plan.ID{g.first, g.target.Commit}
	var b bytes.Buffer
	require.NoError(g.t, (&format.Journal{Header: h, LostFolder: "20261120T063000.000Z-0123456", Areas: []string{""},
		Dirs: []format.Directory{{Path: "projects", Create: true, Perm: 0o755}}, Steps: []format.Step{{Kind: format.StepMkdir}}, Base: format.BaseOf(m)}).Encode(&b))
	_, err = format.DecodeJournal(bytes.NewReader(b.Bytes()), int64(b.Len()), 1<<20)
	require.NoError(g.t, err)
	return b.String()
}

// F30 of docs/internals/threats.md: whatever a program of the gateway writes to a file in .stoker, no gate is passed, nothing outside the data
// directory changes, and the sync succeeds when the gate opens.
func TestWorstStokerFiles(t *testing.T) {
	for name, worst := range stokerFiles {
		t.Run(name, func(t *testing.T) {
			g := newGated(t)
			outside, objects := t.TempDir(), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("canary"), 0o600))
			branches := g.repo.Git("for-each-ref")
			kinds := []string{"worst content", "link", "directory", "binary"}
			for i, content := range []string{worst(g), "link", "dir", strings.Repeat("\xff", 1<<16)} {
				t.Run(kinds[i], func(t *testing.T) {
					require.NoError(t, g.engine.Close())
					writeWorst(t, filepath.Join(g.data, ".stoker", name), content, outside)
					g.restart(objects)
					require.NoError(t, g.engine.SetRecord(g.report()))
					if name != "note-restored" {
						g.waits()
						return
					}
					assert.NotEqual(t, v1alpha1.GatewaySynced, g.sync().Phase, "a damaged record blocks the target")
					assert.Equal(t, `{"one": 1}`, g.read(view))
				})
			}
			g.now = g.now.Add(11 * time.Hour)
			if name == "note-restored" {
				g.target.Retry = annotation.RetryValue(g.target.Commit.String(), g.now)
			}
			g.synced()
			assert.Equal(t, `{"one": 2}`, g.read(view))
			assert.Equal(t, branches, g.repo.Git("for-each-ref"))
			canary, err := os.ReadFile(filepath.Join(outside, "canary"))
			require.NoError(t, err)
			assert.Equal(t, "canary", string(canary))
			there, err := os.ReadDir(outside)
			require.NoError(t, err)
			assert.Len(t, there, 1)
		})
	}
}

func writeWorst(t *testing.T, file, content, outside string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(file))
	switch content {
	case "":
	case "link":
		require.NoError(t, os.Symlink(outside, file))
	case "dir":
		require.NoError(t, os.MkdirAll(filepath.Join(file, "deep"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(file, "deep", "x"), []byte("x"), 0o600))
	default:
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
}

// F30 of docs/internals/threats.md: TestWorstStokerFiles covers the table of that page, which TestNamesAreDocumented of agent/disk compares
// with the code.
func TestStokerFilesAreListed(t *testing.T) {
	page, err := os.ReadFile("../../docs/internals/threats.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "### The files of .stoker")
	table, _, _ = strings.Cut(table, "\n## ")
	var listed, tested []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		listed = append(listed, row[1])
	}
	for name := range stokerFiles {
		tested = append(tested, name)
	}
	slices.Sort(listed)
	slices.Sort(tested)
	assert.Equal(t, tested, listed)
}
