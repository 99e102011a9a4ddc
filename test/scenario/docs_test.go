package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// terminal returns a shell on the machine of the gateway. Its agent and curl use the addresses and the
// data directory of the plant instead of the fixed ones on a real machine, because the last value of a
// flag wins.
func (p *plant) terminal() *document.Shell {
	p.t.Helper()
	programs := map[string]string{"agent": p.script("agent", fmt.Sprintf(`case "$1" in
lost-and-found) exec %[1]q "$@" ;;
*) exec %[1]q "$@" --data-dir %[2]q --gateway-url %[3]q --repo-dir %[4]q --health-addr 127.0.0.1:0 --metrics-addr 127.0.0.1:0 ;;
esac`, program.Build(p.t, "agent"), p.data, p.gw.URL(), filepath.Join(p.dir, "objects")))}
	if curl, err := exec.LookPath("curl"); err == nil && p.agent != nil {
		programs["curl"] = p.script("curl", fmt.Sprintf("exec %q --fail-with-body --connect-to 127.0.0.1:8082:%s \"$@\"", curl, p.agent.health))
	}
	return document.NewShell(p.t, p.dir, programs)
}

func (p *plant) script(name, text string) string {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), name)
	program.Script(p.t, file, "#!/bin/sh\n"+text+"\n")
	return file
}

// Runs the documented commands for an agent without Kubernetes next to a gateway.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	t.Run("by the page on the agent", func(t *testing.T) {
		p := newPlant(t)
		first := p.repo.Commit("first", site()...)
		p.saveSpec()
		for c := range lines.Of("docs/reference/agent.md") {
			p.terminal().Watch(t, c.Text, "Synced", first)
		}
		p.start()
		p.synced(first)
		var edits []gitserver.Edit
		for i := range 3 {
			file := fmt.Sprintf("projects/line/ignition/script-python/pkg%d/mod/code.py", i)
			p.write(file, fmt.Sprintf("# of a person, %d\n", i))
			edits = append(edits, gitserver.Write(inGit+file, "def run():\n    return None\n"))
		}
		p.synced(p.repo.Commit("second", edits...))

		person := p.terminal()
		for c := range lines.Of("docs/how-to/troubleshooting.md") {
			if _, err := exec.LookPath("curl"); err != nil {
				t.Logf("no curl on this machine: %s", c.Text)
				continue
			}
			assert.Contains(t, person.Type(t, c.Text), `"Synced"`)
		}
		require.NoError(t, os.Symlink(p.data, filepath.Join(p.dir, "DIR")))
		for c := range lines.Of("docs/reference/lost-and-found.md") {
			person.Type(t, c.Text)
		}
		saved, err := os.ReadFile(filepath.Join(p.dir, "saved.json"))
		require.NoError(t, err)
		assert.Contains(t, p.lostAndFound(), string(saved))
		p.await("the restored file is drift", func(s state) bool { return s.Drift != nil && s.Drift.Files == 1 })
		p.stop()
	})
	t.Run("by the tutorial", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		// setup: a checkout after make build
		for name, target := range map[string]string{"examples": examples, "bin/agent": program.Build(t, "agent"), "bin/stoker": program.Build(t, "hooks")} {
			target, err := filepath.Abs(target)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
			require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		}
		build := filepath.Join(t.TempDir(), "make")
		program.Script(t, build, "#!/bin/sh\n")
		user := document.NewShell(t, dir, map[string]string{"make": build}, "TMPDIR="+t.TempDir(),
			"GIT_AUTHOR_NAME=You", "GIT_AUTHOR_EMAIL=you@example.com", "GIT_COMMITTER_NAME=You", "GIT_COMMITTER_EMAIL=you@example.com")
		var said []string
		for c := range lines.Of("docs/start/tutorial.md") {
			output := user.Type(t, c.Text)
			if strings.HasPrefix(c.Text, "sh ") || strings.HasPrefix(c.Text, "bin/agent ") {
				said = append(said, output)
			}
		}
		require.Len(t, said, 6)
		for i, want := range []string{"DryRun", "14 created", "2 updated\n", "drift: modified projects/site-a/", "2 to lost+found\n", "changed on the gateway and in git"} {
			assert.Contains(t, said[i], want)
		}
	})
	t.Run("by the quick start", func(t *testing.T) {
		p := newPlant(t, func(_ *plant, o *simulator.Options) { o.Name = "site-a" })
		dir, err := filepath.Abs(filepath.Join(examples, "quickstart"))
		require.NoError(t, err)
		head := p.importTree(dir)
		raw, err := os.ReadFile(filepath.Join(dir, "gatewaysync.yaml"))
		require.NoError(t, err)
		p.spec.raw = regexp.MustCompile(`repo: .*`).ReplaceAllLiteralString(string(raw), "repo: "+p.git.URL("site.git"))
		p.secret("gateway-api/apiKey", p.gw.Token())
		p.saveSpec()
		for c := range lines.Of("examples/quickstart/README.md") {
			p.terminal().Watch(t, c.Text, "Synced", head)
		}
		assert.FileExists(t, filepath.Join(p.data, "projects", "site-a", "project.json"))
	})
}
