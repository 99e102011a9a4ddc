package gitea

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/propose/guard/guardtest"
	"stoker.io/stoker/test/gateway/simulator"
)

// TestReplicasPropose: P1. Five gateways save the same view at the same time. They end with one open pull request and its branch,
// and after the merge all of them have nothing to write.
func TestReplicasPropose(t *testing.T) {
	t.Parallel()
	s := Start(t)
	at, first := s.Repository("site", site())
	token := s.Token("root", "write:repository", "write:issue")
	var lines []*line
	for i := range 5 {
		lines = append(lines, start(t, s, at, fmt.Sprintf("line-%d", i), token))
	}
	for _, l := range lines {
		l.synced(first)
	}
	var all sync.WaitGroup
	began := time.Now()
	for _, l := range lines {
		all.Go(func() { assert.NoError(t, l.trySave("saved in a Designer")) })
	}
	all.Wait()
	assert.Less(t, time.Since(began), time.Minute)

	f := s.forge(at, token)
	var open []forge.PullRequest
	require.Eventually(t, func() bool {
		for _, l := range lines {
			if st, ok := l.now(); !ok || st.Proposal == nil || st.Proposal.State != "Open" {
				return false
			}
		}
		var err error
		open, err = f.Open(t.Context(), "main")
		require.NoError(t, err)
		return len(open) == 1 && len(s.list("/repos/root/site/branches")) == 2
	}, 2*time.Minute, 100*time.Millisecond, "the gateways must share one pull request")
	for _, l := range lines {
		assert.Equal(t, open[0].Number, l.proposal("Open").Proposal.Number, l.name)
	}

	s.Merge("site", open[0].Number, "merge")
	merged := s.must(http.MethodGet, "/repos/root/site/branches/main", nil)["commit"].(map[string]any)["id"].(string)
	for _, l := range lines {
		st := l.synced(merged)
		require.NotNil(t, st.Report, l.name)
		assert.Zero(t, st.Report.Files.Added+st.Report.Files.Modified+st.Report.Files.Deleted, l.name)
		l.proposal("Merged")
	}
}

// TestPairFailover: P1. The node with access to the configuration proposes. After a failover the other node runs git's version and
// opens nothing. The pull request stays open, although the pair copies git's version back.
func TestPairFailover(t *testing.T) {
	t.Parallel()
	s := Start(t)
	at, first := s.Repository("site", site())
	token := s.Token("root", "write:repository", "write:issue")
	role := func(name string) func(*simulator.Options) { return func(o *simulator.Options) { o.Role = name } }
	master := prepare(t, s.url, at, prompt("master"), token, role("Master"))
	backup := prepare(t, s.url, at, prompt("backup"), token, role("Backup"))
	pair, err := simulator.NewPair(master.gw, backup.gw)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(backup.dir, "secrets", "gateway", "apiKey"), []byte(backup.gw.Token()), 0o600)) // the pair shares it
	master.run()
	backup.run()
	standby := func(l *line) {
		t.Helper()
		l.await("Standby", func(st state) bool { return st.Phase == "Standby" })
	}
	master.synced(first)
	standby(backup)
	master.save("saved on the master")
	number := master.proposal("Open").Proposal.Number
	viewOf := func(l *line) string {
		b, err := os.ReadFile(filepath.Join(l.data, views, "overview", "view.json"))
		require.NoError(t, err)
		return string(b)
	}

	pair.Failover(true)
	require.Eventually(t, func() bool { return viewOf(backup) == view("one") }, time.Minute, 50*time.Millisecond, "the backup must take over")
	require.NoError(t, pair.Replicate())
	standby(master)
	require.Equal(t, view("one"), viewOf(master))
	time.Sleep(8 * time.Second) // more than a comparison (syncPeriod) and a debounce
	pair.Failover(true)
	standby(backup)
	master.synced(first)
	time.Sleep(8 * time.Second)
	f := s.forge(at, token)
	list, err := f.Open(t.Context(), "main")
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, number, list[0].Number)
	if p := backup.await("any state", func(state) bool { return true }).Proposal; p != nil { // it saw the change before its first sync
		assert.Equal(t, number, p.Number)
	}

	pair.Failover(true) // the merge is seen on standby, too
	s.Merge("site", number, "merge")
	merged := s.must(http.MethodGet, "/repos/root/site/branches/main", nil)["commit"].(map[string]any)["id"].(string)
	backup.synced(merged)
	require.NoError(t, pair.Replicate())
	master.proposal("Merged")
	assert.Equal(t, view("saved on the master"), viewOf(backup))
	assert.Equal(t, view("saved on the master"), viewOf(master))
	require.Eventually(t, func() bool { return len(s.list("/repos/root/site/branches")) == 1 }, time.Minute, 100*time.Millisecond, "the branch must be deleted")
}

// TestPlantedSecretsStay: P3, C7. It plants secrets and files that CI executes beside an honest change. Nothing is pushed before they are
// gone, and nothing repeats them: no object in git, no pull request, no log, no status, no metric.
func TestPlantedSecretsStay(t *testing.T) {
	t.Parallel()
	s := Start(t)
	at, first := s.Repository("site", site())
	token := s.Token("root", "write:repository", "write:issue")
	l := start(t, s, at, prompt("line"), token)
	l.synced(first)

	word := regexp.MustCompile(`[0-9A-Za-z+/=_.-]{16,}`)
	var needles, planted []string
	plant := func(path, content string) {
		file := filepath.Join(l.data, "projects", "line", filepath.FromSlash(path))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		planted = append(planted, file)
	}
	refused := func(files int) {
		t.Helper()
		st := l.await("the refusal", func(st state) bool {
			return st.Proposal != nil && st.Proposal.State == "Refused" && st.Proposal.Refused >= files
		})
		assert.Equal(t, "ChangesRefused", st.Proposal.Reason)
		assert.Len(t, s.list("/repos/root/site/branches"), 1)
	}
	clean := func() {
		for _, file := range planted {
			require.NoError(t, os.Remove(file))
		}
		planted = nil
	}
	secrets := guardtest.Secrets()
	require.GreaterOrEqual(t, len(secrets), 40)
	for name, secret := range secrets {
		needles = append(needles, word.FindAllString(secret.Text, -1)...)
		plant("ignition/script-python/"+name+"/code.py", secret.Text)
	}
	require.Greater(t, len(needles), 30)
	l.save("an honest change")
	refused(len(secrets))
	clean()
	ci := []string{
		".github/workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "jenkinsfile", "Jenkinsfile.deploy", "CODEOWNERS", "azure-pipelines.yml",
		"bitbucket-pipelines.yml", ".travis.yml", "appveyor.yml", "cloudbuild.yaml",
	}
	for i, path := range ci {
		needle := fmt.Sprintf("executed-by-a-forge-%d", i)
		needles = append(needles, needle)
		plant(path, "run: "+needle)
	}
	refused(1)
	clean()

	number := l.proposal("Open").Proposal.Number
	seen := map[string]string{"the log": l.logs.Log.String()}
	seen["the state"] = get(t, "http://"+l.health+"/state")
	pr := s.must(http.MethodGet, fmt.Sprintf("/repos/root/site/pulls/%d", number), nil)
	seen["the pull request"] = fmt.Sprint(pr)
	assert.Contains(t, seen["the pull request"], "overview")
	git := exec.Command("git", "-C", filepath.Join(s.dir, "repositories", "root", "site.git"), "cat-file", "--batch", "--batch-all-objects")
	objects, err := git.Output()
	require.NoError(t, err)
	require.Contains(t, string(objects), "an honest change")
	seen["git"] = string(objects)
	for where, text := range seen {
		for _, needle := range needles {
			assert.NotContains(t, text, needle, "%s repeats it", where)
		}
	}
}

// gate stands between an agent and Gitea. It holds requests, so that the agent can be killed while it waits for the answer.
type gate struct {
	*httptest.Server
	held chan chan struct{}

	mu    sync.Mutex
	holds func(*http.Request) bool
	after bool // whether Gitea gets a held request before the agent is killed
	left  int  // how many requests are still to be held
}

func newGate(t *testing.T, s *Server) *gate {
	to, err := url.Parse(s.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	g := &gate{held: make(chan chan struct{})}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		hold := g.left > 0 && g.holds(r)
		if hold {
			g.left--
		}
		after := g.after
		g.mu.Unlock()
		if !hold {
			proxy.ServeHTTP(w, r)
			return
		}
		if after {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		killed := make(chan struct{})
		g.held <- killed
		<-killed
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(g.Close)
	return g
}

// prompt returns a name for a gateway that hardly waits before it creates a pull request. Gateways wait for others that made the same
// change, each for a time that follows from its name, up to 15 s.
func prompt(prefix string) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		h := fnv.New32a()
		_, _ = h.Write([]byte("standalone/" + name))
		if h.Sum32()%100 < 2 {
			return name
		}
	}
}

// TestKills: P1. It kills the agent, at most twice, at each step between a save and the pull request. At the end there is one pull request with one
// commit.
func TestKills(t *testing.T) {
	s := Start(t)
	token := s.Token("root", "write:repository", "write:issue")
	on := func(method, path, query string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.HasSuffix(r.URL.Path, path) && strings.Contains(r.URL.RawQuery, query)
		}
	}
	steps := []struct {
		name  string
		holds func(*http.Request) bool // nil: while the change settles
	}{
		{"the change settles", nil},
		{"the branch is looked up", on(http.MethodGet, "/info/refs", "service=git-receive-pack")},
		{"the push", on(http.MethodPost, "/git-receive-pack", "")},
		{"the ended pull requests are listed", on(http.MethodGet, "/pulls", "state=closed")},
		{"the open pull requests are listed", on(http.MethodGet, "/pulls", "state=open")},
		{"the labels are listed", on(http.MethodGet, "/labels", "")},
		{"the creation", on(http.MethodPost, "/pulls", "")},
	}
	for i, step := range steps {
		for _, after := range []bool{false, true} {
			if step.holds == nil && after {
				continue
			}
			t.Run(fmt.Sprintf("%s, handled %t", step.name, after), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprintf("site-%d-%t", i, after)
				at, first := s.Repository(name, site())
				g := newGate(t, s)
				g.holds, g.after, g.left = step.holds, after, 0
				l := prepare(t, g.URL, strings.Replace(at, s.url, g.URL, 1), prompt("line"), token)
				if step.holds == nil { // the change must still settle when save returns
					l.edit("debounce: 1s", "debounce: 10s")
				}
				l.run()
				l.synced(first)
				if step.holds != nil {
					g.mu.Lock()
					g.left = 2
					g.mu.Unlock()
				}
				l.save("saved in a Designer")
				assert.Positive(t, l.killUntilOpen(g, step.holds == nil))

				f := s.forge(at, token)
				branch := "gateway-changes/standalone/" + l.name
				list, err := f.ByHead(t.Context(), branch, "")
				require.NoError(t, err)
				require.Len(t, list, 1, "there must be one pull request in any state")
				assert.Equal(t, forge.Open, list[0].State)
				commit := s.must(http.MethodGet, "/repos/root/"+name+"/git/commits/"+list[0].Commit, nil)
				assert.Equal(t, first, commit["parents"].([]any)[0].(map[string]any)["sha"], "the branch must have one commit above the deployed one")
				assert.Len(t, s.list("/repos/root/"+name+"/branches"), 2)
			})
		}
	}
}

// killUntilOpen kills the agent and starts it again, at most twice, until the pull request is open. It returns the number of kills.
func (l *line) killUntilOpen(g *gate, settling bool) (kills int) {
	l.t.Helper()
	kill := func() {
		require.Error(l.t, l.logs.End(l.t, syscall.SIGKILL))
		kills++
	}
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		select {
		case held := <-g.held:
			kill()
			close(held)
			l.run()
		case <-time.After(50 * time.Millisecond):
		}
		st, ok := l.now()
		switch {
		case !ok || st.Proposal == nil:
		case settling && kills < 2 && st.Proposal.State == "Settling":
			kill()
			l.run()
		case st.Proposal.State == "Open":
			return kills
		}
	}
	require.Fail(l.t, "no pull request is open")
	return kills
}
