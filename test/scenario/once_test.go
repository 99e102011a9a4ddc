package scenario

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

func TestOnceExitCode(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site()...)
	p.spec.ref = "nowhere"
	code, out := p.once()
	assert.Equal(t, 1, code, "missing ref")
	assert.Contains(t, out, "RefNotFound")
	p.checkForeign()
	assert.Empty(t, p.read(viewPath))

	p.spec.ref = "main"
	p.delivers()
	p.check(first)
	p.git.Inject(gitserver.Status(500))
	code, _ = p.once()
	assert.Equal(t, 1, code, "broken server")
	p.check(first)
}

// A full commit ID selects exactly this commit, even if a file or a branch has the same name, and whether or not the store has it.
func TestOnceDeliversNamedCommit(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site()...)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	third := p.repo.Commit("third", gitserver.Write(inGit+viewPath, view("three")), gitserver.Write(inGit+"projects/line/"+first, "a file of that name"), gitserver.Write(first, "and one at the top"))
	p.repo.Branch(first, third)
	for _, ref := range []string{second, third, first, third} { // forward, backward, already in the store
		p.spec.ref = ref
		p.delivers()
		p.check(ref)
	}
	p.git.Forget()
	p.delivers()
	assert.Zero(t, p.git.Stats().Requests, "a commit in the store must need no request")

	p.spec.ref = strings.Repeat("0123456789", 4)
	code, out := p.once()
	assert.Equal(t, 1, code, "a commit that does not exist")
	assert.Contains(t, out, "RefNotFound")
	p.check(third)
}

func TestUnusualDirectoryPaths(t *testing.T) {
	p := newPlant(t, withoutGateway)
	outer := filepath.Join(p.dir, "outer")
	gitserver.NewRepo(t, outer) // the cache is inside another repository
	link := filepath.Join(p.dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(p.dir, "data"), link))
	commit := p.repo.Commit("first", site()...)
	before := entries(t, outer)
	// sequence: each run syncs the commit that the run before it pushed
	for _, flags := range [][]string{
		{"--data-dir", p.data + "/../x/./../data/", "--repo-dir", filepath.Join(outer, "made", "by", "the agent")},
		{"--data-dir", link, "--repo-dir", filepath.Join(outer, "made", "..", "made", "again")},
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(p.dir, "x"), 0o755))
		p.delivers(flags...)
		p.check(commit)
		commit = p.repo.Commit("next", gitserver.Write(inGit+viewPath, view(flags[1])))
	}
	after := entries(t, outer)
	delete(after, "made")
	assert.Equal(t, before, after, "the other repository must not change")
}

// A run with --once does not propose what was changed on the gateway, so it does not replace it either.
func TestOnceKeepsUnproposedChanges(t *testing.T) {
	for _, strategy := range []string{"gitWins", "gatewayWins", "manual"} {
		t.Run(strategy, func(t *testing.T) {
			p := newPlant(t, withoutGateway)
			p.spec.back = back + "    conflictStrategy: " + strategy + "\n"
			first := p.repo.Commit("first", site()...)
			p.delivers()
			p.check(first)

			p.write(viewPath, edited)
			second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
			code, out := p.once()
			assert.Equal(t, 6, code, out)
			assert.Contains(t, out, "ConflictDetected")
			assert.Contains(t, out, "an agent with --once does not propose changes")
			assert.Equal(t, edited, p.read(viewPath))

			p.spec.annotations = map[string]string{"stoker.io/force-sync": "now"}
			p.delivers()
			p.check(second)
			assert.Contains(t, p.lostAndFound(), edited)
		})
	}
}

func entries(t *testing.T, dir string) map[string]bool {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, e := range list {
		names[e.Name()] = true
	}
	return names
}

func TestHealthAndMetricsAfterRestart(t *testing.T) {
	p := newPlant(t, withoutGateway)
	commit := p.repo.Commit("first", site()...)
	for range 2 {
		p.start()
		p.synced(commit)
		for _, url := range []string{
			"http://" + p.agent.health + "/healthz", "http://" + p.agent.health + "/readyz", "http://" + p.agent.Log.Address("metrics") + "/metrics",
		} {
			t.Run(url, func(t *testing.T) {
				res, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				assert.Equal(t, http.StatusOK, res.StatusCode, url)
			})
		}
		p.stop()
	}
}

// If the cache of a synced gateway is lost, the agent fetches only trees and changed files.
func TestLostCacheRefetch(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.repo.Commit("first", append(site(), gitserver.Write(inGit+"projects/line/big.txt", strings.Repeat("not again\n", 1<<16)+time.Now().String()))...)
	p.delivers()
	require.NoError(t, os.RemoveAll(filepath.Join(p.dir, "objects")))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.git.Forget()
	p.delivers()
	p.check(second)
	assert.Less(t, p.git.Stats().PackBytes, int64(8<<10), "the fetch must not contain other files or history")
}

// One run validates, writes files and scans. If the scan fails, the next run repeats it.
func TestOnceWithGateway(t *testing.T) {
	const scan = "POST /data/api/v1/scan/projects"
	p := newPlant(t)
	first := p.repo.Commit("first", site()...)
	p.delivers()
	p.check(first)
	assert.Equal(t, 1, p.gw.Requests.Count(scan))

	p.repo.Commit("bad", gitserver.Write(inGit+viewPath, "{"))
	code, out := p.once()
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "ConfigSyntaxError")
	p.check(first)
	assert.Equal(t, 1, p.gw.Requests.Count(scan), "without changes, the agent must not scan")
	p.repo.ForcePush(first)

	require.NoError(t, p.gw.Faults.Add(simulator.Fault{Route: scan, Status: 500}))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	code, out = p.once()
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "ScanFailed")
	p.gw.Faults.Clear()
	p.gw.Requests.Reset()
	p.delivers()
	p.check(second)
	assert.Positive(t, p.gw.Requests.Count(scan))
}

// F15: A single run has no later drift check, so it compares the files before it reports them as synced.
func TestOnceComparesFilesWithGit(t *testing.T) {
	const missing = "drift: missing projects/"
	for name, setups := range map[string][]setup{"files only": {withoutGateway}, "with a gateway": nil} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, setups...)
			commit := p.repo.Commit("first", site()...)
			out := p.delivers()
			assert.NotContains(t, out, "drift")
			require.NoError(t, os.RemoveAll(filepath.Join(p.data, "projects/line")))

			code, out := p.once()
			assert.Equal(t, 0, code, "drift must not change the exit code")
			assert.Contains(t, last(out), missing)
			assert.NoDirExists(t, filepath.Join(p.data, "projects/line"), "the agent must report drift without a repair")

			p.spec.defaults = "      driftPolicy: repair\n"
			code, out = p.once("--dry-run")
			assert.Equal(t, 0, code, out)
			assert.Contains(t, out, "projects/line/project.json")
			assert.NoDirExists(t, filepath.Join(p.data, "projects/line"))

			code, out = p.once()
			assert.Equal(t, 0, code, out)
			assert.NotContains(t, last(out), "drift")
			p.check(commit)
		})
	}
	t.Run("repair waits for a Designer", func(t *testing.T) {
		p := newPlant(t)
		p.repo.Commit("first", site()...)
		p.delivers()
		p.spec.defaults = "      driftPolicy: repair\n      designerSessionPolicy: wait\n"
		p.write(viewPath, edited)
		_, err := p.gw.Designers.Open("maria", "line")
		require.NoError(t, err)
		code, out := p.once()
		assert.Equal(t, 6, code, out)
		assert.Contains(t, last(out), "DesignerSessionActive")
		assert.Equal(t, edited, p.read(viewPath))
	})
}

// last returns the last line of output, which is the outcome.
func last(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}
