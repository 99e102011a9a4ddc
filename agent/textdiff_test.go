package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/propose/guard/guardtest"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/test/gitserver"
)

// textPlant is a data directory that an agent keeps at a commit.
type textPlant struct {
	t                *testing.T
	repo             *gitserver.Repo
	data, cache, yml string
}

func newTextPlant(t *testing.T) *textPlant {
	t.Helper()
	dir := t.TempDir()
	p := &textPlant{t, gitserver.NewRepo(t, filepath.Join(dir, "plant.git")), filepath.Join(dir, "data"), filepath.Join(dir, "repo", "objects"), filepath.Join(dir, "gatewaysync.yaml")}
	require.NoError(t, os.Mkdir(p.data, 0o700))
	require.NoError(t, os.WriteFile(p.yml, []byte(strings.Replace(onceSpec, "/does/not/exist", p.repo.Dir, 1)), 0o600))
	return p
}

// sync commits edits and syncs once. It returns the id of the last report.
func (p *textPlant) sync(edits ...gitserver.Edit) string {
	p.t.Helper()
	p.repo.Commit("change", edits...)
	var out bytes.Buffer
	code := run(p.t.Context(), []string{"--file", p.yml, "--data-dir", p.data, "--repo-dir", p.cache, "--gateway-name", "g", "--allow-unseeded", "--once"}, nil, &out, &out)
	require.Equal(p.t, daemon.ExitDone, code, out.String())
	reports, err := filepath.Glob(filepath.Join(p.data, ".stoker/history/*.json"))
	require.NoError(p.t, err)
	require.NotEmpty(p.t, reports)
	return filepath.Base(reports[len(reports)-1])
}

// write changes a file on the gateway.
func (p *textPlant) write(path, content string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(filepath.Join(p.data, path), []byte(content), 0o600))
}

// inspect runs text-diff in the environment of the agent's container.
func (p *textPlant) inspect(args ...string) (code int, out, talk string) {
	p.t.Helper()
	env := []string{"POD_NAME=line-0", "DATA_PATH=" + p.data, "REPO_PATH=" + filepath.Dir(p.cache)}
	var stdout, stderr bytes.Buffer
	code = run(p.t.Context(), append([]string{"text-diff"}, args...), env, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// shows runs text-diff and returns its output.
func (p *textPlant) shows(args ...string) string {
	p.t.Helper()
	code, out, talk := p.inspect(args...)
	require.Equal(p.t, daemon.ExitDone, code, talk)
	return out
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n { // setup: the lines of a file
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestTextDiffOfASync(t *testing.T) {
	t.Parallel()
	p := newTextPlant(t)
	code := "a/line/code.py"
	p.sync(gitserver.Write(code, numbered(9)), gitserver.Write("a/line/old.py", "gone\n"))
	id := p.sync(gitserver.Write(code, strings.Replace(numbered(9), "line 4", "fifth", 1)), gitserver.Write("a/line/new.py", "new"), gitserver.Delete("a/line/old.py"))
	changed := `--- before/projects/line/code.py
+++ after/projects/line/code.py
@@ -2,7 +2,7 @@
 line 1
 line 2
 line 3
-line 4
+fifth
 line 5
 line 6
 line 7
`
	t.Run("all files", func(t *testing.T) {
		assert.Equal(t, changed+`--- /dev/null
+++ after/projects/line/new.py
@@ -0,0 +1,1 @@
+new
\ No newline at end of file
--- before/projects/line/old.py
+++ /dev/null
@@ -1,1 +0,0 @@
-gone
`, p.shows("sync", id))
	})
	t.Run("one file", func(t *testing.T) { assert.Equal(t, changed, p.shows("sync", id, "projects/line/code.py")) })
	t.Run("outside the container", func(t *testing.T) {
		var out, talk bytes.Buffer
		exit := run(t.Context(), []string{"text-diff", "sync", "--repo-dir", p.cache, id, "projects/line/code.py", "--data-dir", p.data}, nil, &out, &talk)
		assert.Equal(t, daemon.ExitDone, exit, talk.String())
		assert.Equal(t, changed, out.String())
	})
	t.Run("a file that the sync did not change", func(t *testing.T) {
		assert.Equal(t, "--data-dir=/: the report of the sync does not have this file\n", p.shows("sync", "--", id, "--data-dir=/"))
	})
	t.Run("an unknown report", func(t *testing.T) {
		for _, id := range []string{"g-diff-20200101-000000.json", "../manifest", "x"} {
			t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
				exit, out, talk := p.inspect("sync", id)
				assert.Equal(t, daemon.ExitFailed, exit)
				assert.Empty(t, out)
				assert.Contains(t, talk, "there is no report")
			})
		}
	})
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{}, {"sync"}, {"drift"}, {"show", "x"}} {
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				exit, _, talk := p.inspect(args...)
				assert.Equal(t, daemon.ExitUsage, exit)
				assert.Contains(t, talk, "agent text-diff drift --data-dir DIR")
			})
		}
	})
	t.Run("a cache without the content", func(t *testing.T) {
		require.NoError(t, os.RemoveAll(p.cache))
		out := p.shows("sync", id)
		assert.Regexp(t, `^projects/line/code.py: before: the agent's cache of git objects does not have this content; if git has it, git show [0-9a-f]{40} prints it in a clone\n`, out)
		assert.Equal(t, 3, strings.Count(out, "\n"))
		assert.NoDirExists(t, p.cache, "an inspection creates nothing")
	})
}

// F35: what a gateway writes into its files and into the reports of syncs shows no secret, no file of another place, and no more than a bound.
func TestTextDiffOfDrift(t *testing.T) {
	t.Parallel()
	p := newTextPlant(t)
	small := func(name string) gitserver.Edit { return gitserver.Write("a/line/"+name, "old\n") }
	var edits []gitserver.Edit
	for _, name := range []string{"code.py", "gone.py", "link.py", "binary.bin", "large.txt", "lines.txt", "secret.txt", "same.py", "empty.py"} {
		edits = append(edits, small(name))
	}
	id := p.sync(append(edits, gitserver.Write("a/line/users.json", "{}"))...)
	outside := filepath.Join(filepath.Dir(p.data), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("not of the gateway\n"), 0o600))
	at := func(name string) string { return "projects/line/" + name }
	p.write(at("code.py"), "old\nnew\x1b[2J\n")
	p.write(at("binary.bin"), "a\x00b")
	p.write(at("large.txt"), strings.Repeat("x", 512<<10+1))
	p.write(at("lines.txt"), strings.Repeat("\n", 10_001))
	p.write(at("secret.txt"), guardtest.Secrets()["GitHub token"].Text)
	p.write(at("empty.py"), "")
	p.write(at("foreign.py"), "x")
	require.NoError(t, os.Remove(filepath.Join(p.data, at("gone.py"))))
	require.NoError(t, os.Remove(filepath.Join(p.data, at("link.py"))))
	require.NoError(t, os.Symlink(outside, filepath.Join(p.data, at("link.py"))))
	for path, want := range map[string]string{
		at("code.py"):    "--- git/projects/line/code.py\n+++ gateway/projects/line/code.py\n@@ -1,1 +1,2 @@\n old\n+new\x1b[2J\n",
		at("gone.py"):    "--- git/projects/line/gone.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-old\n",
		at("empty.py"):   "--- git/projects/line/empty.py\n+++ gateway/projects/line/empty.py\n@@ -1,1 +0,0 @@\n-old\n",
		at("same.py"):    "projects/line/same.py: the content is the same\n",
		at("link.py"):    "projects/line/link.py: gateway: it is not a regular file any more\n",
		at("binary.bin"): "projects/line/binary.bin: binary files differ (4 and 3)\n",
		at("large.txt"):  "projects/line/large.txt: not shown: larger than 512Ki (4 and 512.1Ki)\n",
		at("lines.txt"):  "projects/line/lines.txt: not shown: it has 10001 lines\n",
		at("secret.txt"): "projects/line/secret.txt: has secrets, not shown: GitHub token\n",
		at("users.json"): "projects/line/users.json: not shown: file with users\n",
		at("foreign.py"): "projects/line/foreign.py: the agent did not write this file\n",
		"../outside":     "../outside: the agent did not write this file\n",
		".stoker/lock":   ".stoker/lock: not shown: belongs to the gateway\n",
		"a\x1b[2J":       "a [2J: not shown: name that is not plain text\n",
	} {
		t.Run(strings.ReplaceAll(path, "/", "-"), func(t *testing.T) { assert.Equal(t, want, p.shows("drift", path)) })
	}
	t.Run("a parent that is a link", func(t *testing.T) {
		linked := newTextPlant(t)
		linked.sync(small("code.py"))
		elsewhere := filepath.Join(t.TempDir(), "line")
		require.NoError(t, os.Rename(filepath.Join(linked.data, "projects/line"), elsewhere))
		require.NoError(t, os.Symlink(elsewhere, filepath.Join(linked.data, "projects/line")))
		assert.Contains(t, linked.shows("drift", at("code.py")), "+++ /dev/null\n", "nothing is read behind a link")
	})
	t.Run("a hostile report", func(t *testing.T) {
		blob := "git:" + strings.TrimSpace(p.repo.Git("rev-parse", "HEAD:a/line/code.py"))
		commit := "git:" + p.repo.Head()
		var changes []map[string]any
		for path, after := range map[string]string{
			"config/resources/local/ignition/api-token/stoker-agent/config.json": blob, "../../etc/passwd": blob, "projects/line/server.pem": blob,
			at("a.py"): "git:../../outside", at("b.py"): commit,
		} { // setup: the changes of a report
			changes = append(changes, map[string]any{"path": path, "action": "added", "checksum": map[string]string{"after": after}})
		}
		raw, err := json.Marshal(map[string]any{"schema": 1, "gateway": "other", "changes": changes})
		require.NoError(t, err)
		p.write(".stoker/history/"+id, string(raw))
		out := p.shows("sync", id)
		for _, want := range []string{
			"api-token/stoker-agent/config.json: not shown: belongs to the gateway\n", "server.pem: not shown: keystore, key, module or backup\n",
			"a.py: after: the report has no git ID of the content\n", "b.py: after: damaged git data: object " + p.repo.Head() + " is a commit, not a blob\n",
		} {
			assert.Contains(t, out, want)
		}
		assert.Contains(t, out, "+++ after/../../etc/passwd\n@@ -0,0 +1,1 @@\n+old\n", "a path is a label: the content is that of git")
		for name, text := range map[string]string{"no JSON": "{", "another file": `{"x":1}`} {
			t.Run(name, func(t *testing.T) {
				p.write(".stoker/history/"+id, text)
				code, _, talk := p.inspect("sync", id)
				assert.Equal(t, daemon.ExitFailed, code)
				assert.Contains(t, talk, "is not one of the agent")
			})
		}
	})
}

// F35: the worst texts take about a second, and the output is bounded.
func TestTextDiffBounds(t *testing.T) {
	t.Parallel()
	p := newTextPlant(t)
	filled := func(unit string) string { return strings.Repeat(unit, 512<<10/len(unit)) }
	lines := func(unit, end string) string { // almost as many lines and bytes as a file may have
		return strings.Repeat(strings.Repeat(unit, (51-len(end))/len(unit))+end+"\n", 9_999)
	}
	worst := map[string][2]string{
		"equal.txt":   {lines("a", ""), lines("a", "b")},
		"moved.txt":   {numbered(9_999), reversed(numbered(9_999))},
		"one.txt":     {filled("a"), filled("b")},
		"keyword.txt": {filled(`password = "`), filled(`secret: '`)},
		"jdbc.txt":    {filled("jdbc:"), "x"},
		"url.txt":     {filled("://a:"), filled("://")},
		"escape.txt":  {filled(`\\`), filled(`\u005c`)},
	}
	var before, after []gitserver.Edit
	for name, text := range worst { // setup: two commits
		before, after = append(before, gitserver.Write("a/line/"+name, text[0])), append(after, gitserver.Write("a/line/"+name, text[1]))
	}
	p.sync(before...)
	id := p.sync(after...)
	for name := range worst {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			out := p.shows("sync", id, "projects/line/"+name)
			t.Logf("%s, %d bytes: %.80q", time.Since(began), len(out), out)
			assert.Less(t, time.Since(began), 2*time.Minute, "ten times what a busy machine needs with the race detector")
			assert.LessOrEqual(t, len(out), 1<<20+200)
		})
	}
	t.Run("output", func(t *testing.T) {
		moved := "projects/line/moved.txt"
		out := p.shows("sync", id, moved, moved, moved, moved, moved, moved)
		assert.LessOrEqual(t, len(out), 1<<20+200)
		assert.Equal(t, "2 of 6 files are not shown, because of the limits on files, time and output: name fewer\n", out[strings.LastIndex(out[:len(out)-1], "\n")+1:])
	})
	t.Run("files", func(t *testing.T) {
		paths := []string{"drift"}
		for i := range 101 { // setup: arguments
			paths = append(paths, fmt.Sprint(i))
		}
		out := p.shows(paths...)
		assert.Equal(t, 101, strings.Count(out, "\n"))
		assert.Contains(t, out, "1 of 101 files are not shown")
	})
}

// reversed returns the lines of a text in reverse order.
func reversed(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, j := 0, len(lines)-1; i < j; i, j = i+1, j-1 { // setup: swap
		lines[i], lines[j] = lines[j], lines[i]
	}
	return strings.Join(lines, "")
}
