// Package scenario runs the real agent binary through phases like those of a real plant. Tests push
// commits, kill processes, stop servers and edit files on the gateway. After each phase they check the
// invariants of status_test.go against git, the disk and the gateway.
package scenario

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// liveness bounds every wait: ten times what a loaded machine needs.
const liveness = 60 * time.Second

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(program.M{Tests: m}.Run())
}

// plant is one gateway with its environment.
type plant struct {
	t    *testing.T
	git  *gitserver.Server
	repo *gitserver.Repo
	gw   *simulator.Gateway // nil: files only
	data string             // the gateway's data directory
	dir  string             // everything else
	spec spec

	agent   *process
	unowned map[string]string // path → content of files that the agent must not touch
}

// spec is the part of the GatewaySync that scenarios vary.
type spec struct {
	repo, ref   string
	annotations map[string]string
	defaults    string // lines below spec.sync.defaults
	gateway     string // lines below spec.gateway
	api         string // spec.gateway.api; "" for the token of the Secret
	back        string // lines below spec.bidirectional
	top         string // lines below spec
	git         string // lines below spec.git
	mappings    [][2]string
	more        map[string]string // destination → further fields of its mapping
	slow        bool              // long intervals: only events trigger a sync
	raw         string            // the whole file, replaces all other fields
}

// setup changes the plant and the options of its gateway before they start.
type setup func(p *plant, o *simulator.Options)

// withoutGateway syncs files only.
func withoutGateway(_ *plant, o *simulator.Options) { o.Data = "" }

// inParallel holds the tests that already called t.Parallel, because some have two plants.
var inParallel sync.Map

func newPlant(t *testing.T, setups ...setup) *plant {
	t.Helper()
	if _, second := inParallel.LoadOrStore(t, true); !second {
		t.Parallel() // a scenario mostly waits
	}
	p := &plant{t: t, dir: t.TempDir(), unowned: map[string]string{}}
	p.data = filepath.Join(p.dir, "data")
	require.NoError(t, os.MkdirAll(filepath.Join(p.dir, "secrets", "gateway"), 0o755))
	require.NoError(t, os.MkdirAll(p.data, 0o755))
	root := filepath.Join(p.dir, "git")
	require.NoError(t, os.MkdirAll(root, 0o755))
	p.repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	var err error
	p.git, err = gitserver.Start(root, gitserver.Options{Pushes: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.git.Close()) })
	p.spec = spec{repo: p.git.URL("site.git"), ref: "main", mappings: [][2]string{{"services/gw/projects", "projects"}, {"services/gw/config", "config"}}}

	o := simulator.Options{Data: p.data, Strict: true}
	for _, s := range setups {
		s(p, &o)
	}
	if o.Data != "" {
		p.gw, err = simulator.Start(o)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.gw.Close()) })
		p.secret("gateway/apiKey", p.gw.Token())
	} else {
		p.write(".ignition-seed-complete", "")
	}
	p.foreign("projects/local-only/project.json", `{"title": "made on the gateway", "enabled": true}`)
	p.foreign("config/resources/core/notes.txt", "kept by a person")
	return p
}

// secret writes a secret to the path that the agent reads.
func (p *plant) secret(key, value string) {
	p.t.Helper()
	file := filepath.Join(p.dir, "secrets", key)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(p.t, os.WriteFile(file+".new", []byte(value+"\n"), 0o600))
	require.NoError(p.t, os.Rename(file+".new", file))
}

// foreign creates a file that the agent does not own and must not change.
func (p *plant) foreign(path, content string) {
	p.t.Helper()
	p.write(path, content)
	p.unowned[path] = content
}

// write replaces a file like a user on the gateway.
func (p *plant) write(path, content string) {
	p.t.Helper()
	file := filepath.Join(p.data, path)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(p.t, os.WriteFile(file+"~", []byte(content), 0o644))
	require.NoError(p.t, os.Rename(file+"~", file))
}

// read returns a file of the data directory, or "" if it does not exist.
func (p *plant) read(path string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.data, path))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(p.t, err)
	return string(b)
}

// saveSpec writes the GatewaySync as an editor does: to a temporary file that it renames. A raw spec is written in place.
func (p *plant) saveSpec() {
	p.t.Helper()
	if p.spec.raw != "" {
		require.NoError(p.t, os.WriteFile(p.file(), []byte(p.spec.raw), 0o644))
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: stoker.io/v1alpha1\nkind: GatewaySync\nmetadata:\n  name: site\n  annotations:\n    example.com/kept: \"yes\"\n")
	for k, v := range p.spec.annotations {
		fmt.Fprintf(&b, "    %s: %q\n", k, v)
	}
	fmt.Fprintf(&b, "spec:\n  git:\n    repo: %s\n    ref: %q\n", p.spec.repo, p.spec.ref)
	fmt.Fprintf(&b, "    auth:\n      token:\n        secretRef: {name: git, key: token}\n")
	b.WriteString(p.spec.git + p.spec.top)
	interval, period := "1s", 5
	if p.spec.slow {
		interval, period = "1h", 3600
	}
	fmt.Fprintf(&b, "  polling: {interval: %s}\n", interval)
	if p.gw != nil {
		fmt.Fprintf(&b, "  gateway:\n    api: %s\n%s", cmp.Or(p.spec.api, "{secretName: gateway}"), p.spec.gateway)
	}
	if p.spec.back != "" {
		fmt.Fprintf(&b, "  bidirectional:\n    enabled: true\n%s", p.spec.back)
	}
	fmt.Fprintf(&b, "  sync:\n    defaults:\n      syncPeriod: %d\n%s    profiles:\n      default:\n        mappings:\n", period, p.spec.defaults)
	for _, m := range p.spec.mappings {
		fmt.Fprintf(&b, "          - {source: %s, destination: %s%s}\n", m[0], m[1], p.spec.more[m[1]])
	}
	file := p.file()
	require.NoError(p.t, os.WriteFile(file+".new", []byte(b.String()), 0o644))
	require.NoError(p.t, os.Rename(file+".new", file))
	if _, err := os.Stat(filepath.Join(p.dir, "secrets", "git", "token")); err != nil {
		p.secret("git/token", "S3CR3T-git")
	}
}

func (p *plant) file() string { return filepath.Join(p.dir, "gatewaysync.yaml") }

// process is a running agent.
type process struct {
	*program.Process
	health string
}

func (p *plant) args(extra ...string) []string {
	a := []string{"--file", p.file(), "--data-dir", p.data, "--gateway-name", "gw", "--repo-dir", filepath.Join(p.dir, "objects"),
		"--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-format", "json"}
	if p.gw != nil {
		a = append(a, "--gateway-url", p.gw.URL())
	}
	return append(a, extra...)
}

// start runs the agent in the background and waits until it answers.
func (p *plant) start(extra ...string) {
	p.t.Helper()
	p.saveSpec()
	cmd := exec.Command(program.Build(p.t, "agent"), p.args(extra...)...)
	cmd.Env = []string{"HOME=" + p.dir} // F7: no PATH, nothing of the test's environment
	a := &process{Process: program.Start(p.t, "the agent", cmd)}
	p.agent = a
	p.eventually("the agent listens", func() bool {
		a.health = a.Log.Address("health")
		return a.health != "" || a.Ended()
	})
	require.NotEmpty(p.t, a.health, "the agent ended: %s", a.Log)
}

// stop ends the agent like an orchestrator and expects a clean exit.
func (p *plant) stop() {
	p.t.Helper()
	require.NoError(p.t, p.agent.End(p.t, syscall.SIGTERM), "the agent ended with an error")
}

// kill sends SIGKILL to the agent.
func (p *plant) kill() {
	p.t.Helper()
	require.Error(p.t, p.agent.End(p.t, syscall.SIGKILL))
}

// once runs the agent once and returns its exit code and output.
func (p *plant) once(extra ...string) (code int, out string) {
	p.t.Helper()
	p.saveSpec()
	cmd := exec.Command(program.Build(p.t, "agent"), p.args(append([]string{"--once"}, extra...)...)...)
	cmd.Env = []string{"HOME=" + p.dir}
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(p.t, err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

// delivers is once with the exit code 0. It returns the output.
func (p *plant) delivers(extra ...string) string {
	p.t.Helper()
	code, out := p.once(extra...)
	require.Equal(p.t, 0, code, out)
	return out
}

// started starts the agent with the first commit, which is the site with more edits, and waits until it is synced.
func (p *plant) started(more ...gitserver.Edit) (first string) {
	p.t.Helper()
	first = p.repo.Commit("first", site(more...)...)
	p.start()
	p.synced(first)
	return first
}

// state is the response of /state.
type state struct {
	Phase, Reason, Message, Ref, Target, Commit string
	Problems                                    []struct{ Reason, Message string }
	Report                                      *struct {
		Files struct{ Added, Modified, Deleted, Kept, Saved, Total int }
		Scans []struct{ Kind, Reason string }
		Notes []string
		Fetch struct {
			Kind    string
			Objects int
			Bytes   int64
		}
	}
	Drift *struct {
		Files int
		Paths []json.RawMessage
	}
	History  []struct{ Commit, Phase, Reason string }
	Proposal *struct {
		State, Branch, Commit, URL, Reason, Message string
		Files, Refused                              int
	}
}

func (p *plant) state() (state, bool) {
	p.t.Helper()
	var s state
	res, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + p.agent.health + "/state")
	if err != nil {
		return s, false
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return s, false
	}
	require.NoError(p.t, json.Unmarshal(b, &s), "%s", b)
	return s, true
}

// await waits for a state and returns it.
func (p *plant) await(what string, ok func(state) bool) state {
	p.t.Helper()
	var last state
	p.eventually(what, func() bool {
		if p.agent.Ended() {
			p.t.Fatalf("the agent ended during the wait for: %s", what)
		}
		s, there := p.state()
		last = s
		return there && ok(s)
	}, func() string { return fmt.Sprintf("%+v", last) })
	return last
}

// synced waits until the agent reports Synced at commit, and then checks all invariants.
func (p *plant) synced(commit string) state {
	p.t.Helper()
	s := p.await("Synced at "+commit, func(s state) bool { return s.Phase == "Synced" && s.Commit == commit })
	p.check(commit)
	return s
}

// reason waits for a reason in the state.
func (p *plant) reason(reason string) state {
	p.t.Helper()
	return p.await(reason, func(s state) bool { return s.Reason == reason })
}

func (p *plant) eventually(what string, ok func() bool, detail ...func() string) {
	p.t.Helper()
	deadline := time.Now().Add(liveness)
	for !ok() {
		if time.Now().After(deadline) {
			for _, d := range detail {
				what += "; last: " + d()
			}
			p.t.Fatalf("waited %s for: %s", liveness, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
