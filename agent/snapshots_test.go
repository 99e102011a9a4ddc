package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/daemon"
)

func TestSnapshotsCommand(t *testing.T) {
	data := t.TempDir()
	t.Run("usage", func(t *testing.T) {
		code, _, talk := command(t, "snapshots", "restore", "--data-dir", data)
		assert.Equal(t, daemon.ExitUsage, code)
		assert.Contains(t, talk, "stoker.io/restore", "the usage says how to restore a snapshot")
	})
	t.Run("none", func(t *testing.T) {
		out := done(t, "snapshots", "list", "--data-dir", data)
		assert.Equal(t, "There are no snapshots.\n", out)
	})
	at := time.Date(2026, 2, 12, 10, 20, 0, 0, time.UTC)
	d, err := disk.Open(data, disk.Options{AllowUnseeded: true, Now: func() time.Time { return at }})
	require.NoError(t, err)
	// sync makes a change, and a snapshot of what it replaces.
	sync := func(c plan.Change, commit byte) {
		s, err := d.Stage(t.Context(), &plan.Changes{List: []plan.Change{c}}, nil, func(w io.Writer, _ plan.Change) error {
			_, err := io.WriteString(w, "one")
			return err
		})
		require.NoError(t, err)
		require.NoError(t, s.Snapshot(disk.Snapshots{Gateway: "area-4", Keep: 5, MaxBytes: 1 << 20}))
		_, err = s.Apply(t.Context(), plan.Header{Ref: "main", Commit: plan.ID{commit}, Complete: true})
		require.NoError(t, err)
	}
	one, err := plan.ParseID("43dd47ea691c90a5fa7827892c70241913351963") // the blob "one"
	require.NoError(t, err)
	sync(plan.Change{Path: "projects/a", Op: plan.Create, ID: one}, 1)
	st, err := d.Stat("projects/a")
	require.NoError(t, err)
	sync(plan.Change{Path: "projects/a", Op: plan.Delete, Found: st, FoundID: one, Owned: true}, 2)
	require.NoError(t, d.Close())
	t.Run("as a table", func(t *testing.T) {
		out := done(t, "snapshots", "list", "--data-dir", data)
		assert.Equal(t, `SNAPSHOT                COMMIT   SYNCED   FILES  SIZE
area-4-20260212-102000  0100000  0200000  1      3
`, out)
	})
	t.Run("as JSON", func(t *testing.T) {
		out := done(t, "snapshots", "list", "-o", "json", "--data-dir", data)
		var l []disk.Snapshot
		require.NoError(t, json.Unmarshal([]byte(out), &l))
		assert.Equal(t, []disk.Snapshot{{ID: "area-4-20260212-102000", Time: at, Ref: "main", Commit: plan.ID{1}, To: plan.ID{2}, Files: 1, Bytes: 3}}, l)
	})
	t.Run("with a backup", func(t *testing.T) {
		d, err := disk.Open(data, disk.Options{AllowUnseeded: true})
		require.NoError(t, err)
		require.NoError(t, d.SaveBackup("area-4-20260212-102000", 10, func(w io.Writer) error {
			_, err := io.WriteString(w, "PK")
			return err
		}))
		require.NoError(t, d.Close())
		out := done(t, "snapshots", "list", "--data-dir", data)
		assert.Equal(t, `SNAPSHOT                COMMIT   SYNCED   FILES  SIZE  BACKUP
area-4-20260212-102000  0100000  0200000  1      3     yes
`, out)
	})
	t.Run("export", func(t *testing.T) {
		out := done(t, "snapshots", "export", "area-4-20260212-102000", "--data-dir", data)
		zip, err := gzip.NewReader(strings.NewReader(out))
		require.NoError(t, err)
		files := map[string]string{}
		for r := tar.NewReader(zip); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			b, err := io.ReadAll(r)
			require.NoError(t, err)
			files[h.Name] = string(b)
		}
		assert.Equal(t, "one", files["files/projects/a"], "the export has the deleted file")
		assert.Len(t, files, 3, "one file, snapshot.json and files.jsonl")
	})
	t.Run("export of an unknown snapshot", func(t *testing.T) {
		for _, id := range []string{"area-4-20260212-999999", "area-4-20260101-000000", "../x"} {
			code, out, talk := command(t, "snapshots", "export", "--data-dir", data, id)
			assert.Equal(t, daemon.ExitFailed, code)
			assert.Empty(t, out)
			assert.Contains(t, talk, "there is no snapshot")
		}
	})
	t.Run("export of a damaged file", func(t *testing.T) {
		file := filepath.Join(data, ".stoker/snapshots/area-4-20260212-102000/0-"+one.String())
		require.NoError(t, os.WriteFile(file, []byte("other"), 0o600))
		code, _, talk := command(t, "snapshots", "export", "--data-dir", data, "area-4-20260212-102000")
		assert.Equal(t, daemon.ExitFailed, code)
		assert.Contains(t, talk, "the file has changed")
	})
	t.Run("a damaged snapshot is not listed", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(data, ".stoker/snapshots/area-4-20260212-102000/manifest"), nil, 0o600))
		out := done(t, "snapshots", "list", "--data-dir", data)
		assert.Equal(t, "There are no snapshots.\n", out)
	})
}

// shown returns what a screen writes to stdout and stderr for two log events, the progress of a step, and a state that is passed to it twice.
func shown(s settings, onTerminal bool) (out, talk string) {
	var stdout, stderr bytes.Buffer
	if s.LogFormat == "" {
		s.LogFormat = "auto"
	}
	s.LogLevel = "info"
	c := newScreen(&stdout, &stderr, s, func(io.Writer) bool { return onTerminal })
	c.log.Info("following", "gateway", "g")
	c.progress("stage", 5, 10)
	c.log.Warn("something is odd")
	r := &sync.Report{Phase: v1alpha1.GatewaySynced, Notes: []string{"no config; skipped", "without the lock"}}
	st := loop.State{GatewayName: "g", Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Commit: plan.ID{0xab}, Ref: "main", Message: "done", Report: r,
		Plan: []string{"first sync → ab00000: 1 created", "+ projects/p/project.json", "warning: no config; skipped"}}
	c.state(st)
	c.state(st)
	return stdout.String(), stderr.String()
}

func TestTerminalOutput(t *testing.T) {
	out, talk := shown(settings{}, true)
	assert.Equal(t, "first sync → ab00000: 1 created\n+ projects/p/project.json\nwarning: no config; skipped\nnote: without the lock\ng: Synced at ab00000 (main): done\n", out)
	assert.Contains(t, talk, "\r\x1b[Kstage 5/10\r\x1b[K", "the progress is erased before a log line")
	assert.Contains(t, talk, "something is odd")
	assert.NotContains(t, talk, "following", "a terminal shows the plan instead of the log event")
}

func TestJSONLogsWithoutTerminal(t *testing.T) {
	out, talk := shown(settings{}, false)
	assert.Empty(t, out)
	lines := strings.Split(strings.TrimSpace(talk), "\n")
	assert.Len(t, lines, 2)
	for _, l := range lines {
		assert.True(t, json.Valid([]byte(l)), l)
	}
	assert.NotContains(t, talk, "\x1b")
}

func TestOnceOutput(t *testing.T) {
	out, talk := shown(settings{Once: true}, false)
	assert.Contains(t, out, "+ projects/p/project.json")
	assert.Contains(t, out, "g: Synced")
	assert.Contains(t, talk, `"msg":"following"`)
}
