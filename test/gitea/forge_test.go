package gitea

import (
	"context"
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
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/forge/forgetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/program"
)

func (s *Server) forge(at, token string) forge.Forge {
	s.t.Helper()
	f, err := forge.New(giturl.Gitea, forge.Config{Repository: at, Token: func(context.Context) (secret.String, error) { return secret.New(token), nil }})
	require.NoError(s.t, err)
	return f
}

func TestSuite(t *testing.T) {
	s := Start(t)
	at, _ := s.Repository("suite", map[string]string{"a": "0"})
	n := 0
	forgetest.Suite(t, forgetest.Env{
		Forge: s.forge(at, s.Token("root", "write:repository", "write:issue")),
		Push: func(branch string) string {
			n++
			return s.Push(at, branch, "main", map[string]string{branch: fmt.Sprint(n)})
		},
		Merge: func(number int64) { s.Merge("suite", number, "merge") },
		Status: func(commit, context string) (forge.CommitStatus, int) {
			out := s.must(http.MethodGet, "/repos/root/suite/commits/"+commit+"/status", nil) // the last one of each context
			list, _ := out["statuses"].([]any)
			for _, one := range list {
				if m, _ := one.(map[string]any); m["context"] == context {
					return forge.CommitStatus{State: forge.CommitState(fmt.Sprint(m["status"])), Context: context, Description: fmt.Sprint(m["description"]), URL: fmt.Sprint(m["target_url"])}, len(list)
				}
			}
			return forge.CommitStatus{}, 0
		},
	})
}

func TestPullRequests(t *testing.T) {
	s := Start(t)
	at, _ := s.Repository("site", map[string]string{"a": "0"})
	s.must(http.MethodPost, "/repos/root/site/labels", map[string]any{"name": "gateway-change", "color": "#00aabb"})
	f := s.forge(at, s.Token("root", "write:repository", "write:issue"))
	open := func(branch string) forge.PullRequest {
		t.Helper()
		s.Push(at, branch, "main", map[string]string{branch: "x"})
		pr, err := f.Create(t.Context(), forge.Draft{Branch: branch, Base: "main", Title: "t " + branch, Body: "b"})
		require.NoError(t, err)
		return pr
	}
	find := func(branch string) forge.PullRequest {
		t.Helper()
		list, err := f.ByHead(t.Context(), branch, "main")
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0]
	}

	t.Run("create and adopt", func(t *testing.T) {
		commit := s.Push(at, "gateway-changes/a", "main", map[string]string{"a": "1"})
		d := forge.Draft{Branch: "gateway-changes/a", Base: "main", Title: "title", Body: "body", Labels: []string{"gateway-change", "unknown"}}
		pr, err := f.Create(t.Context(), d)
		require.NoError(t, err)
		assert.Equal(t, []string{`the repository has no label "unknown"`}, pr.Notes)
		_, err = f.Create(t.Context(), d)
		require.ErrorIs(t, err, forge.ErrExists)
		got := find("gateway-changes/a")
		assert.Equal(t, forge.PullRequest{
			Number: pr.Number, URL: pr.URL, State: forge.Open, Branch: "gateway-changes/a", Commit: commit, Base: "main", Title: "title", Body: "body",
		}, got)
		out := s.must(http.MethodGet, fmt.Sprintf("/repos/root/site/pulls/%d", pr.Number), nil)
		assert.Len(t, out["labels"], 1)
		res, err := http.Get(pr.URL)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	})
	t.Run("update", func(t *testing.T) {
		pr := open("update")
		require.NoError(t, f.Update(t.Context(), pr.Number, "other", "text"))
		got := find("update")
		assert.Equal(t, "other", got.Title)
		assert.Equal(t, "text", got.Body)
		commit := s.Push(at, "update", "update", map[string]string{"more": "x"})
		assert.Equal(t, commit, find("update").Commit)
	})
	for _, style := range []string{"merge", "squash", "rebase"} {
		t.Run(style, func(t *testing.T) {
			pr := open(style + "d")
			s.Merge("site", pr.Number, style)
			assert.Equal(t, forge.Merged, find(style+"d").State)
			require.NoError(t, f.Close(t.Context(), pr.Number, ""), "closing a merged pull request must succeed")
		})
	}
	t.Run("close", func(t *testing.T) {
		pr := open("closed")
		require.NoError(t, f.Close(t.Context(), pr.Number, "undone on the gateway"))
		require.NoError(t, f.Close(t.Context(), pr.Number, ""))
		got := find("closed")
		assert.Equal(t, forge.Closed, got.State)
		assert.Equal(t, "t closed", got.Title)
		list, err := f.Open(t.Context(), "main")
		require.NoError(t, err)
		for _, p := range list {
			assert.NotEqual(t, pr.Number, p.Number)
		}
	})
	t.Run("deleted branch", func(t *testing.T) {
		pr := open("gone")
		s.Merge("site", pr.Number, "merge")
		s.must(http.MethodDelete, "/repos/root/site/branches/gone", nil)
		assert.Equal(t, forge.Merged, find("gone").State)
	})
	t.Run("rights", func(t *testing.T) {
		s.User("reader")
		for name, tc := range map[string]struct {
			at, token string
			want      v1alpha1.Reason
		}{
			"wrong token":         {at, "0123456789012345678901234567890123456789", v1alpha1.ReasonAuthFailed},
			"token without scope": {at, s.Token("root", "read:repository"), v1alpha1.ReasonAuthFailed},
			"missing repository":  {strings.Replace(at, "site", "none", 1), s.Token("root", "write:repository", "write:issue"), v1alpha1.ReasonUnsupportedRepository},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := s.forge(tc.at, tc.token).Create(t.Context(), forge.Draft{Branch: "update", Base: "main", Title: "t"})
				assert.Equal(t, tc.want, failure.Reason(err, ""), "%v", err)
				assert.NotContains(t, fmt.Sprint(err), tc.token)
			})
		}
	})
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // they mostly wait
	os.Exit(program.M{Tests: m}.Run())
}

const (
	views    = "projects/line/com.inductiveautomation.perspective/views/"
	overview = "com.inductiveautomation.perspective/views/overview"
)

func view(text string) string {
	return fmt.Sprintf("{\n  \"custom\": {},\n  \"root\": {\n    \"props\": {\n      \"text\": %q\n    },\n    \"type\": \"ia.display.label\"\n  }\n}", text)
}

// line is a gateway with its agent.
type line struct {
	t         *testing.T
	gw        *simulator.Gateway
	name      string
	dir, data string
	health    string
	logs      *program.Process
}

type state struct {
	Phase, Reason, Message, Commit string
	Report                         *struct {
		Files struct{ Added, Modified, Deleted int }
		Scans []any
	}
	Proposal *struct {
		State, URL, Reason, Message string
		Number                      int64
		Refused                     int
	}
}

// start starts a gateway and the real agent, which follows the repository and proposes changes.
func start(t *testing.T, s *Server, at, name, token string, setups ...func(*simulator.Options)) *line {
	t.Helper()
	l := prepare(t, s.url, at, name, token, setups...)
	l.run()
	return l
}

// prepare starts a gateway, and writes the files of an agent that uses the forge at an address.
func prepare(t *testing.T, forge, at, name, token string, setups ...func(*simulator.Options)) *line {
	t.Helper()
	dir := t.TempDir()
	l := &line{t: t, name: name, dir: dir, data: filepath.Join(dir, "data")}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "secrets", "gateway"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "secrets", "forge"), 0o755))
	require.NoError(t, os.MkdirAll(l.data, 0o755))
	o := simulator.Options{Data: l.data, Strict: true}
	for _, setup := range setups {
		setup(&o)
	}
	var err error
	l.gw, err = simulator.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.gw.Close()) })
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("secrets/gateway/apiKey", l.gw.Token())
	write("secrets/forge/token", token)
	write("site.yaml", fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: site}
spec:
  git: {repo: %q, ref: main, auth: {token: {secretRef: {name: forge, key: token}, username: root}}}
  polling: {interval: 1s}
  gateway: {api: {secretName: gateway}}
  bidirectional:
    enabled: true
    debounce: 1s
    provider: gitea
    apiBaseURL: %q
    prLabels: [gateway-change]
    authors: {maria: "Maria Muster <maria@example.com>"}
    watchPaths: ["projects/line/**"]
  sync:
    defaults: {syncPeriod: 5}
    profiles: {default: {mappings: [{source: services/gw/projects, destination: projects}]}}
`, at, forge))
	return l
}

// edit replaces a part of the GatewaySync.
func (l *line) edit(old, by string) {
	l.t.Helper()
	file := filepath.Join(l.dir, "site.yaml")
	text, err := os.ReadFile(file)
	require.NoError(l.t, err)
	require.Contains(l.t, string(text), old)
	require.NoError(l.t, os.WriteFile(file, []byte(strings.Replace(string(text), old, by, 1)), 0o600))
}

// run starts the agent, which may have run before.
func (l *line) run() {
	l.t.Helper()
	cmd := exec.Command(program.Build(l.t, "agent"), "--file", filepath.Join(l.dir, "site.yaml"), "--data-dir", l.data, "--gateway-name", l.name,
		"--repo-dir", filepath.Join(l.dir, "objects"), "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--log-format", "json", "--gateway-url", l.gw.URL())
	cmd.Env = []string{"HOME=" + l.dir}
	l.logs = program.Start(l.t, l.name, cmd)
	l.health = ""
	require.Eventually(l.t, func() bool { l.health = l.logs.Log.Address("health"); return l.health != "" }, time.Minute, 20*time.Millisecond)
}

// await waits for a state of the agent.
func (l *line) await(what string, ok func(state) bool) state {
	l.t.Helper()
	var s state
	require.Eventually(l.t, func() bool {
		var answers bool
		s, answers = l.now()
		return answers && ok(s)
	}, time.Minute, 50*time.Millisecond, "%s", what)
	return s
}

// now returns the state, if the agent answers.
func (l *line) now() (s state, ok bool) {
	res, err := http.Get("http://" + l.health + "/state")
	if err != nil {
		return s, false
	}
	defer func() { _ = res.Body.Close() }()
	return s, json.NewDecoder(res.Body).Decode(&s) == nil
}

func (l *line) synced(commit string) state {
	l.t.Helper()
	return l.await("Synced at "+commit, func(s state) bool { return s.Phase == "Synced" && s.Commit == commit })
}

func (l *line) proposal(want string) state {
	l.t.Helper()
	return l.await("proposal "+want, func(s state) bool { return s.Proposal != nil && s.Proposal.State == want })
}

func (l *line) save(text string) {
	l.t.Helper()
	require.NoError(l.t, l.trySave(text))
}

func (l *line) trySave(text string) error {
	id, err := l.gw.Designers.Open("maria", "line")
	if err != nil {
		return err
	}
	files := map[string][]byte{"view.json": []byte(view(text))}
	return errors.Join(l.gw.Designers.OpenResource(id, overview), l.gw.Designers.SaveResource(l.t.Context(), id, overview, files, true), l.gw.Designers.Close(id))
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(b)
}

func site() map[string]string {
	const project = `{"title":"Line","description":"","parent":"","enabled":true,"inheritable":false}`
	const resource = `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["view.json"],"attributes":{}}`
	return map[string]string{
		"services/gw/projects/line/project.json":          project,
		"services/gw/" + views + "overview/view.json":     view("one"),
		"services/gw/" + views + "overview/resource.json": resource,
		"README.md": "not for the gateway",
	}
}

// TestSaveToMerge follows a save in a Designer to a pull request, its merge, and back. The agent of the gateway that made the change writes
// nothing. It scans once, because nothing shows it whether the gateway itself wrote these files. Another gateway takes the merge like any commit.
func TestSaveToMerge(t *testing.T) {
	s := Start(t)
	for _, style := range []string{"merge", "squash", "rebase"} {
		t.Run(style, func(t *testing.T) {
			at, first := s.Repository(style, site())
			s.must(http.MethodPost, "/repos/root/"+style+"/labels", map[string]any{"name": "gateway-change", "color": "#00aabb"})
			token := s.Token("root", "write:repository", "write:issue")
			maria, other := start(t, s, at, "maria-line", token), start(t, s, at, "other-line", token)
			maria.synced(first)
			other.synced(first)

			maria.save("saved in a Designer")
			st := maria.proposal("Open")
			pr := s.must(http.MethodGet, fmt.Sprintf("/repos/root/%s/pulls/%d", style, st.Proposal.Number), nil)
			assert.Equal(t, "maria-line: 1 resource of line changed by maria", pr["title"])
			assert.Equal(t, pr["html_url"], st.Proposal.URL)
			assert.Len(t, pr["labels"], 1)
			assert.Contains(t, pr["body"], "`maria`")
			assert.NotContains(t, pr["body"], token)

			s.Merge(style, st.Proposal.Number, style)
			merged := s.must(http.MethodGet, "/repos/root/"+style+"/branches/main", nil)["commit"].(map[string]any)["id"].(string)
			back := maria.synced(merged)
			require.NotNil(t, back.Report)
			assert.Zero(t, back.Report.Files.Added+back.Report.Files.Modified+back.Report.Files.Deleted, "the merge wrote files")
			assert.Len(t, back.Report.Scans, 1)
			maria.proposal("Merged")
			other.synced(merged)
			b, err := os.ReadFile(filepath.Join(other.data, views, "overview", "view.json"))
			require.NoError(t, err)
			assert.Equal(t, view("saved in a Designer"), string(b))
			require.Eventually(t, func() bool {
				code, _ := s.Call(http.MethodGet, "/repos/root/"+style+"/branches/gateway-changes%2Fstandalone%2Fmaria-line", nil)
				return code == http.StatusNotFound
			}, time.Minute, 100*time.Millisecond, "the branch must be deleted")
		})
	}
}

// TestProtectedBranch lets the forge decline the push.
func TestProtectedBranch(t *testing.T) {
	s := Start(t)
	at, first := s.Repository("site", site())
	s.must(http.MethodPost, "/repos/root/site/branch_protections", map[string]any{"rule_name": "gateway-changes/**", "enable_push": false})
	l := start(t, s, at, "line", s.Token("root", "write:repository", "write:issue"))
	l.synced(first)
	l.save("saved in a Designer")
	st := l.await("the refusal", func(st state) bool {
		return st.Proposal != nil && st.Proposal.State == "Pushing" && st.Proposal.Message != "pushing"
	})
	assert.Contains(t, st.Proposal.Message, "declined")
	assert.Equal(t, "Synced", st.Phase, "a proposal must not affect the sync")
}
