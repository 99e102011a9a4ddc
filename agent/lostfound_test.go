package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/test/gitserver"
)

// lostSite returns a data directory in which a sync has replaced an edit of the gateway, and a function that syncs it once more.
func lostSite(t *testing.T) (data string, sync func()) {
	t.Helper()
	dir := t.TempDir()
	data = filepath.Join(dir, "data")
	require.NoError(t, os.MkdirAll(data, 0o755))
	repo := gitserver.NewRepo(t, filepath.Join(dir, "git"))
	repo.Commit("first", gitserver.Write("projects/p/project.json", `{"v": 1}`), gitserver.Write("projects/p/deep/er/code.py", "v = 1\n"))
	file := filepath.Join(dir, "gs.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
spec:
  git: {repo: "file://`+repo.Dir+`", ref: main}
  sync: {profiles: {default: {mappings: [{source: projects, destination: projects}]}}}
`), 0o600))
	sync = func() {
		t.Helper()
		var out bytes.Buffer
		code := run(t.Context(), []string{"--file", file, "--data-dir", data, "--gateway-name", "g", "--repo-dir", filepath.Join(dir, "objects"), "--allow-unseeded", "--once"}, nil, &out, &out)
		require.Equal(t, daemon.ExitDone, code, out.String())
	}
	sync()
	require.NoError(t, os.WriteFile(filepath.Join(data, "projects/p/deep/er/code.py"), []byte("mine = True\n"), 0o600))
	repo.Commit("second", gitserver.Write("projects/p/deep/er/code.py", "v = 2\n"))
	sync()
	return data, sync
}

// command runs the agent.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, talk bytes.Buffer
	code = run(t.Context(), args, nil, &out, &talk)
	return code, out.String(), talk.String()
}

// done runs the agent, which must succeed, and returns its output.
func done(t *testing.T, args ...string) string {
	t.Helper()
	code, out, talk := command(t, args...)
	require.Equal(t, daemon.ExitDone, code, talk)
	return out
}

func lost(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return command(t, append([]string{"lost-and-found"}, args...)...)
}

func TestLostFoundCommands(t *testing.T) {
	data, sync := lostSite(t)
	file := filepath.Join(data, "projects/p/deep/er/code.py")

	out := done(t, "lost-and-found", "list", "--data-dir", data)
	assert.Contains(t, out, "projects/p/deep/er/code.py")
	out = done(t, "lost-and-found", "show", "1", "--data-dir", data)
	assert.Equal(t, "mine = True\n", out)

	out = done(t, "lost-and-found", "list", "-o", "json", "--data-dir", data)
	var list []struct{ Path, File string }
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 1)

	// The current file is from git and may be overwritten. Its folder may even be missing.
	done(t, "lost-and-found", "restore", list[0].File, "--data-dir", data)
	assert.Equal(t, "mine = True\n", read(t, file))
	require.NoError(t, os.RemoveAll(filepath.Join(data, "projects/p/deep")))
	done(t, "lost-and-found", "restore", "--data-dir", data, "1")
	assert.Equal(t, "mine = True\n", read(t, file))
	sync() // the restored file is drift, and stays
	assert.Equal(t, "mine = True\n", read(t, file))
	entries, err := os.ReadDir(filepath.Join(data, ".stoker"))
	require.NoError(t, err)
	for _, e := range entries {
		assert.NotContains(t, e.Name(), "restore")
	}
}

func TestRestoreKeepsUncommittedFiles(t *testing.T) {
	data, _ := lostSite(t)
	file := filepath.Join(data, "projects/p/deep/er/code.py")
	require.NoError(t, os.WriteFile(file, []byte("a user's newer work\n"), 0o600))
	code, _, talk := lost(t, "restore", "1", "--data-dir", data)
	assert.Equal(t, daemon.ExitFailed, code)
	assert.Contains(t, talk, "not in git")
	assert.Equal(t, "a user's newer work\n", read(t, file))
}

// F2: neither the restore path nor the index of lost+found leads outside the data directory.
func TestRestoreStaysInDirectory(t *testing.T) {
	data, _ := lostSite(t)
	outside := t.TempDir()
	require.NoError(t, os.RemoveAll(filepath.Join(data, "projects/p/deep")))
	require.NoError(t, os.Symlink(outside, filepath.Join(data, "projects/p/deep")))
	code, _, _ := lost(t, "restore", "1", "--data-dir", data)
	assert.Equal(t, daemon.ExitFailed, code)
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, left)

	secret := filepath.Join(outside, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("S3CR3T"), 0o600))
	index, err := filepath.Glob(filepath.Join(data, ".stoker/lost+found/*.jsonl"))
	require.NoError(t, err)
	require.Len(t, index, 1)
	for _, bad := range []string{"../../../" + filepath.Base(outside) + "/secret", secret, "../../projects/p/project.json", ""} {
		t.Run(bad, func(t *testing.T) {
			line, err := json.Marshal(map[string]any{"path": "projects/p/x.json", "file": bad})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(index[0], append(line, '\n'), 0o600))
			code, out, _ := lost(t, "show", "1", "--data-dir", data)
			assert.Equal(t, daemon.ExitFailed, code, bad)
			assert.Empty(t, out)
		})
	}
	for _, bad := range []string{"../up.json", ".stoker/manifest", "config/local/x", "projects/../../x"} {
		t.Run(bad, func(t *testing.T) {
			line, err := json.Marshal(map[string]any{"path": bad, "file": "a/b"})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(index[0], append(line, '\n'), 0o600))
			code, _, _ := lost(t, "restore", "1", "--data-dir", data)
			assert.Equal(t, daemon.ExitFailed, code, bad)
		})
	}
}

func TestLostAndFoundUsage(t *testing.T) {
	data, _ := lostSite(t)
	for problem, args := range map[string][]string{
		`no verb ""`:            nil,
		"--data-dir":            {"list"},
		"not take 0 arguments":  {"show", "--data-dir", data},
		"not take 2 arguments":  {"show", "1", "2", "--data-dir", data},
		`no verb "burn"`:        {"burn", "1", "--data-dir", data},
		"-o must be":            {"list", "-o", "xml", "--data-dir", data},
		"flag provided but not": {"list", "--nonsense"},
	} {
		t.Run(problem, func(t *testing.T) {
			code, _, talk := lost(t, args...)
			assert.Equal(t, daemon.ExitUsage, code)
			assert.Contains(t, talk, problem)
			assert.Contains(t, talk, "agent lost-and-found restore")
		})
	}
	for _, help := range []string{"help", "-h", "-help", "--help"} {
		t.Run(help, func(t *testing.T) {
			code, _, talk := lost(t, help)
			assert.Equal(t, daemon.ExitDone, code)
			assert.Contains(t, talk, "agent lost-and-found restore")
		})
	}
	t.Run("flags before the verb", func(t *testing.T) {
		out := done(t, "lost-and-found", "-o", "json", "--data-dir", data, "list")
		assert.Contains(t, out, `"path"`)
	})
	for _, entry := range []string{"0", "99", "no-such-file"} {
		t.Run(entry, func(t *testing.T) {
			code, _, talk := lost(t, "show", entry, "--data-dir", data)
			assert.Equal(t, daemon.ExitFailed, code)
			assert.Contains(t, talk, entry)
		})
	}
	out := done(t, "lost-and-found", "list", "--data-dir", t.TempDir())
	assert.Contains(t, out, "empty")
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

func TestProposalShow(t *testing.T) {
	for name, args := range map[string][]string{
		"no verb": {}, "an unknown verb": {"burn"}, "no directory": {"show"}, "an unknown format": {"show", "--data-dir", "x", "-o", "xml"}, "an argument": {"show", "--data-dir", "x", "y"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, talk := command(t, append([]string{"proposal"}, args...)...)
			assert.Equal(t, daemon.ExitUsage, code)
			assert.Contains(t, talk, "agent proposal show --data-dir DIR")
		})
	}
	data := t.TempDir()
	t.Run("nothing proposed", func(t *testing.T) {
		out := done(t, "proposal", "show", "--data-dir", data)
		assert.Equal(t, "Nothing has been proposed.\n", out)
	})
	d, err := disk.Open(data, disk.Options{AllowUnseeded: true})
	require.NoError(t, err)
	require.NoError(t, d.SetNote("proposal", []byte(`{"branch":"gateway-changes/a","tip":"1111111111111111111111111111111111111111","digest":"d","number":3,
		"url":"https://git.example.com/3\u001b[2J","files":{"site/projects/line/a.json":{"path":"projects/line/a.json","op":"modified","id":"2222222222222222222222222222222222222222"}}}`)))
	require.NoError(t, d.Close())
	t.Run("as a table", func(t *testing.T) {
		out := done(t, "proposal", "show", "--data-dir", data)
		assert.Equal(t, `STATE         Open
BRANCH        gateway-changes/a
COMMIT        1111111111111111111111111111111111111111
PULL REQUEST  "https://git.example.com/3\x1b[2J"

WHAT      FILE                  IN GIT
modified  projects/line/a.json  site/projects/line/a.json
`, out)
	})
	t.Run("a forged state", func(t *testing.T) {
		forged := t.TempDir()
		d, err := disk.Open(forged, disk.Options{AllowUnseeded: true})
		require.NoError(t, err)
		require.NoError(t, d.SetNote("proposal", []byte(`{"lastState":"\u001b[2J"}`)))
		require.NoError(t, d.Close())
		assert.Equal(t, "STATE  \"\\x1b[2J\"\n", done(t, "proposal", "show", "--data-dir", forged))
	})
	t.Run("as JSON", func(t *testing.T) {
		out := done(t, "proposal", "show", "-o", "json", "--data-dir", data)
		var r propose.Summary
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		assert.EqualValues(t, 3, r.Number)
		assert.Equal(t, []propose.Change{{Path: "projects/line/a.json", Source: "site/projects/line/a.json", Op: propose.Modified}}, r.Changes)
	})
}
