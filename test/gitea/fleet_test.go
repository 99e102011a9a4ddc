package gitea

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/propose/guard/guardtest"
	"stoker.io/stoker/test/gateway/simulator"
)

// TestReplicasPropose: P1. Five gateways save the same view within a second. They end with one open pull request and its branch,
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
	assert.Less(t, time.Since(began), 10*time.Second)

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

// TestPairFailover: P1. The node with access to the configuration proposes. After a failover the other node runs git's version, opens
// nothing, and the pull request stays open: that the pair copies git's version back is not a withdrawal.
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
