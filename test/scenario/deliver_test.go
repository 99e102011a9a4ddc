package scenario

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

func TestCommitsArrive(t *testing.T) {
	p := newPlant(t)
	first := p.repo.Commit("first", site()...)
	p.start()
	s := p.synced(first)
	assert.Equal(t, 29, s.Report.Files.Total)

	p.gw.Requests.Reset()
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	s = p.synced(second)
	assert.Equal(t, view("two"), p.read(viewPath))
	assert.Equal(t, 1, p.gw.Requests.Count("POST /data/api/v1/scan/projects"), "the changed tree must be scanned once")
	assert.Zero(t, p.gw.Requests.Count("POST /data/api/v1/scan/config"), "the unchanged tree must not be scanned")
	assert.LessOrEqual(t, s.Report.Fetch.Bytes, int64(2048), "a commit of one file must fetch one file")

	third := p.repo.Commit("third", gitserver.Delete(inGit+"projects/line/ignition/script-python/pkg3/mod/code.py"),
		gitserver.Delete(inGit+"projects/line/ignition/script-python/pkg3/mod/resource.json"))
	p.synced(third)
	assert.NoDirExists(t, p.data+"/projects/line/ignition/script-python/pkg3", "the agent must remove the directories that it created")

	p.stop()
	p.checkQuiet(third)
}

func TestCommitTagAndBranch(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site()...)
	p.repo.AnnotatedTag("v1", first)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.start()
	p.synced(second)

	p.spec.ref = "v1" // F16: an annotated tag resolves to its commit, also if that is older than the last one
	p.saveSpec()
	p.synced(first)
	p.spec.ref = second
	p.saveSpec()
	p.synced(second)
	p.repo.Branch("other", first)
	p.spec.ref = "refs/heads/other"
	p.saveSpec()
	p.synced(first)
	p.stop()
	p.checkQuiet(first)
}

func TestMovedMapping(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.started(gitserver.Write("shared/projects/common/project.json", projectJSON("Common")))
	p.spec.mappings = append(p.spec.mappings[:1], [2]string{"shared/projects", "projects"})
	p.saveSpec() // the same commit, other rules
	p.await("the new project", func(state) bool { return p.read("projects/common/project.json") != "" })
	p.await("Synced", func(s state) bool { return s.Phase == "Synced" })
	assert.NotEmpty(t, p.read("config/resources/core/ignition/database-connection/historian/config.json"), "unmapped files must be released, not deleted")
	p.stop()
	p.check(first)
	p.checkQuiet(first)
}

func TestRepositoryChangeWithoutRestart(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.started()
	other := gitserver.NewRepo(t, p.dir+"/git/other.git")
	head := other.Commit("unrelated", site(gitserver.Write(inGit+viewPath, view("from the other repository")))...)
	p.repo, p.spec.repo = other, p.git.URL("other.git")
	p.saveSpec()
	p.synced(head)
	p.stop()
	p.checkQuiet(head)
}

// F16: Rewritten history is an ordinary change of the ref.
func TestForcePushAndDeletedBranch(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.started()

	p.repo.Checkout("rewritten")
	orphan := p.repo.Orphan("unrelated", site(gitserver.Write(inGit+viewPath, view("rewritten")))...)
	p.repo.Branch("main", orphan)
	p.synced(orphan)

	p.repo.DeleteBranch("main")
	s := p.reason("RefNotFound")
	assert.Equal(t, orphan, s.Commit, "the last good commit must stay")
	assert.Equal(t, view("rewritten"), p.read(viewPath))
	p.checkForeign()

	p.repo.Branch("main", orphan)
	p.synced(orphan)
}

func TestDryRunPrintsPlan(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.repo.Commit("first", site()...)
	out := p.delivers("--dry-run")
	assert.Contains(t, out, "+ "+viewPath)
	assert.NoFileExists(t, p.data+"/"+viewPath)
	p.checkForeign()

	broken := p.repo.Commit("broken", gitserver.Write(inGit+viewPath, "{"))
	code, out := p.once("--dry-run")
	assert.Equal(t, 1, code, out)
	assert.Contains(t, out, "ConfigSyntaxError", broken)
}

func TestDryRunBesideAgent(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.started()
	raw, err := os.ReadFile(p.file())
	require.NoError(t, err)
	other := filepath.Join(p.dir, "other.yaml") // dry run of a changed spec
	require.NoError(t, os.WriteFile(other, bytes.ReplaceAll(raw, []byte("          - {source: services/gw/config, destination: config}\n"), nil), 0o644))
	cmd := exec.Command(program.Build(t, "agent"), append(p.args("--once", "--dry-run"), "--file", other)...)
	cmd.Env = []string{"HOME=" + p.dir}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "2 released")
	assert.False(t, p.agent.Ended())
	assert.NotEmpty(t, p.read("config/resources/core/ignition/database-connection/historian/config.json"))
}

func TestContinuousDryRunBesideAgent(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site()...)
	p.start("--dry-run")
	p.eventually("the plan", func() bool { return strings.Contains(p.agent.Log.String(), "dry run, nothing was written") })
	assert.NoDirExists(t, filepath.Join(p.dir, "objects"))
	assert.NoDirExists(t, filepath.Join(p.data, ".stoker"))

	out := p.delivers()
	assert.Contains(t, out, first[:7])
	assert.False(t, p.agent.Ended())
	p.stop() // a killed dry run leaves its temporary directory
}

// The agent writes files for a stopped gateway. It scans and verifies them once the gateway runs, because
// it cannot know when the gateway read what.
func TestStoppedGatewayIsSynced(t *testing.T) {
	p := newPlant(t)
	p.started()
	require.NoError(t, p.gw.SetState(simulator.Down))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	s := p.await("Applied", func(s state) bool { return s.Phase == "Applied" && s.Commit == second })
	assert.Equal(t, "WaitingForGateway", s.Reason)
	assert.Equal(t, view("two"), p.read(viewPath))
	p.gw.Requests.Reset()
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.synced(second)
	assert.Equal(t, 1, p.gw.Requests.Count("POST /data/api/v1/scan/projects"))
}

// A pending scan survives a crash between writing the files and the scan.
func TestPendingScanAfterCrash(t *testing.T) {
	p := newPlant(t)
	p.started()

	require.NoError(t, p.gw.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: 500}))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.await("the scan fails", func(s state) bool { return s.Phase == "Error" && s.Commit == second })
	assert.Equal(t, view("two"), p.read(viewPath), "the files must be written")
	p.kill()
	p.gw.Faults.Clear()
	p.gw.Requests.Reset()
	p.start()
	p.synced(second)
	assert.Positive(t, p.gw.Requests.Count("POST /data/api/v1/scan/projects"))
}

func TestRefusedTokenThenFixed(t *testing.T) {
	p := newPlant(t)
	token := p.gw.Token()
	p.secret("gateway/apiKey", "stoker:nonsense")
	head := p.repo.Commit("first", site()...)
	p.start()
	s := p.reason("GatewayForbidden")
	assert.NotEqual(t, "Synced", s.Phase)
	p.secret("gateway/apiKey", token)
	p.synced(head)
	assert.NotContains(t, p.agent.Log.String(), token)
}

func TestUnloadableProjectIsNotSynced(t *testing.T) {
	p := newPlant(t)
	head := p.repo.Commit("orphan", site(gitserver.Write(inGit+"projects/child/project.json",
		`{"title": "Child", "description": "", "parent": "nobody", "enabled": true, "inheritable": false}`))...)
	p.start()
	s := p.reason("VerificationFailed")
	assert.Contains(t, s.Message, "child")
	fixed := p.repo.Commit("parent", gitserver.Write(inGit+"projects/child/project.json", projectJSON("Child")))
	p.synced(fixed)
	assert.NotEqual(t, head, fixed)
}

func TestRealTrees(t *testing.T) {
	for _, tree := range realTrees(t) {
		t.Run(tree.name, func(t *testing.T) {
			p := newPlant(t, withoutGateway)
			p.spec.mappings = tree.mappings
			head := p.importTree(tree.dir)
			p.start()
			p.synced(head)
			p.stop()
			p.checkQuiet(head)

			require.NoError(t, os.RemoveAll(p.data+"/.stoker")) // simulates a gateway that had the files before it had an agent
			before := p.fingerprint()
			p.delivers()
			after := p.fingerprint()
			for path, was := range before {
				assert.Equal(t, was, after[path], "equal files must be adopted, not written: %s", path)
			}
			p.checkQuiet(head)
		})
	}
}

// back are settings that propose what a Designer saves in the project line, on a git server without a forge.
const back = "    provider: none\n    debounce: 1s\n    watchPaths: [\"projects/line/**\"]\n"

// branch is the branch to which the agent pushes what was changed on the gateway.
const branch = "gateway-changes/standalone/gw"

// save saves a view in a Designer.
func (p *plant) save(text string) {
	p.t.Helper()
	const overview = "com.inductiveautomation.perspective/views/overview"
	id, err := p.gw.Designers.Open("maria", "line")
	require.NoError(p.t, err)
	require.NoError(p.t, p.gw.Designers.OpenResource(id, overview))
	require.NoError(p.t, p.gw.Designers.SaveResource(p.t.Context(), id, overview, map[string][]byte{"view.json": []byte(view(text))}, true))
	require.NoError(p.t, p.gw.Designers.Close(id))
}

// proposal waits for a state of the proposal.
func (p *plant) proposal(want string) state {
	p.t.Helper()
	return p.await("proposal "+want, func(s state) bool { return s.Proposal != nil && s.Proposal.State == want })
}

// TestDesignerSaveBecomesBranch follows a save from the Designer to git and back.
func TestDesignerSaveBecomesBranch(t *testing.T) {
	for name, inPlace := range map[string]bool{"replaced files": false, "files written in place": true} {
		t.Run(name, func(t *testing.T) {
			saveBecomesABranch(t, newPlant(t, func(_ *plant, o *simulator.Options) { o.Unknowns.SaveInPlace = inPlace }))
		})
	}
}

func saveBecomesABranch(t *testing.T, p *plant) {
	p.spec.back = back
	first := p.started()
	p.git.Forget()

	p.save("maria's")
	s := p.proposal("Pushed")
	assert.Equal(t, branch, s.Proposal.Branch)
	assert.Equal(t, view("maria's"), p.repo.Content(branch, inGit+viewPath))
	assert.Equal(t, p.read(viewDir+"/resource.json"), p.repo.Content(branch, inGit+viewDir+"/resource.json"))
	assert.Equal(t, first, p.repo.Git("rev-parse", branch+"^"))
	assert.Equal(t, "maria (Ignition)", p.repo.Git("log", "-1", "--format=%an", branch))
	assert.Equal(t, inGit+viewDir+"/resource.json\n"+inGit+viewDir+"/thumbnail.png\n"+inGit+viewPath, p.repo.Git("diff", "--name-only", "main", branch))

	// The merge brings nothing that the gateway does not have: no write.
	merge := p.repo.Merge("merge", branch)
	s = p.await("the merge", func(s state) bool { return s.Phase == "Synced" && s.Commit == merge })
	require.NotNil(t, s.Report)
	assert.Zero(t, s.Report.Files.Added+s.Report.Files.Modified+s.Report.Files.Deleted)
	p.proposal("Merged")
	p.eventually("the branch is deleted", func() bool { return p.repo.Git("for-each-ref", "refs/heads/"+branch) == "" })
	p.check(merge)
}

// TestSyncWaitsForPush changes a view on the gateway and in git at once: the sync waits until the gateway's version is pushed.
func TestSyncWaitsForPush(t *testing.T) {
	p := newPlant(t)
	p.spec.back = "    provider: none\n    debounce: 5s\n    watchPaths: [\"projects/line/**\"]\n"
	p.started()
	p.save("maria's")
	p.proposal("Settling")
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("git's")))
	p.reason("ConflictDetected")
	s := p.await("git's version", func(s state) bool { return s.Phase == "Synced" && s.Commit == second })
	assert.Positive(t, s.Report.Files.Saved)
	assert.Equal(t, view("git's"), p.read(viewPath))
	assert.Equal(t, view("maria's"), p.repo.Content(branch, inGit+viewPath))
	p.proposal("Pushed") // it stays: no user has undone the change
}

// An agent that starts before its ref exists does not wait for the next poll.
func TestFirstSyncFollowsItsRef(t *testing.T) {
	t.Run("repository created later", func(t *testing.T) {
		p := newPlant(t, withoutGateway)
		p.spec.slow = true
		commit := p.repo.Commit("first", site()...)
		away := p.repo.Dir + ".away"
		require.NoError(t, os.Rename(p.repo.Dir, away))
		p.start()
		p.reason("RefNotFound")
		require.NoError(t, os.Rename(away, p.repo.Dir))
		p.synced(commit)
	})
	t.Run("branch pushed later", func(t *testing.T) {
		p := newPlant(t, withoutGateway)
		p.spec.slow, p.spec.ref = true, "later"
		commit := p.repo.Commit("first", site()...)
		p.start()
		p.reason("RefNotFound")
		p.repo.Branch("later", commit)
		p.synced(commit)
	})
}

// A commit waits until the Designer session that it affects is closed. A commit to another project does
// not wait.
func TestCommitWaitsForDesigner(t *testing.T) {
	p := newPlant(t)
	p.spec.defaults = "      designerSessionPolicy: wait\n"
	p.started()

	id, err := p.gw.Designers.Open("maria", "line")
	require.NoError(t, err)
	elsewhere := p.repo.Commit("elsewhere", gitserver.Write(inGit+"projects/other/project.json", `{"title":"","description":"","parent":"","enabled":true,"inheritable":false}`))
	p.synced(elsewhere)
	before := p.read(viewPath)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	s := p.reason("DesignerSessionActive")
	assert.Equal(t, "Held", s.Phase)
	assert.Equal(t, elsewhere, s.Commit)
	assert.Contains(t, s.Message, "maria on project line")
	assert.Equal(t, before, p.read(viewPath))

	// A save before closing is an ordinary conflict, and the saved content is kept.
	const open = "com.inductiveautomation.perspective/views/overview"
	require.NoError(t, p.gw.Designers.OpenResource(id, open))
	require.NoError(t, p.gw.Designers.SaveResource(t.Context(), id, open, map[string][]byte{"view.json": []byte(view("maria's"))}, false))
	require.NoError(t, p.gw.Designers.Close(id))
	s = p.synced(second)
	assert.Positive(t, s.Report.Files.Saved)
}

// Each node of a redundant pair has its own agent. The backup is on standby while the pair copies files.
// After a failover it takes over, even with a commit that the old master never had.
func TestPairFailover(t *testing.T) {
	role := func(r string) setup { return func(_ *plant, o *simulator.Options) { o.Role = r } }
	master := newPlant(t, role("Master"))
	backup := newPlant(t, role("Backup"))
	backup.repo, backup.git, backup.spec.repo = master.repo, master.git, master.spec.repo
	pair, err := simulator.NewPair(master.gw, backup.gw)
	require.NoError(t, err)
	backup.secret("gateway/apiKey", backup.gw.Token())

	first := master.repo.Commit("first", site()...)
	backup.start()
	backup.reason("Progressing")
	master.start()
	master.synced(first)
	backup.standby(first)

	pair.Failover(false)
	second := master.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	backup.synced(second)
	s := master.reason("NoConfigAccess")
	assert.Equal(t, first, s.Commit)

	// The old master returns and copies from the node that is active now.
	master.gw.Redundancy.SetConfigAccess(false, true)
	backup.gw.Redundancy.SetConfigAccess(true, true)
	require.NoError(t, pair.Replicate())
	master.standby(second)
	assert.Equal(t, view("second"), master.read(viewPath))
}

// standby waits until the agent reports Standby at commit, and then checks all invariants.
func (p *plant) standby(commit string) {
	p.t.Helper()
	p.await("Standby at "+commit, func(s state) bool { return s.Phase == "Standby" && s.Commit == commit })
	p.check(commit)
}

// The gateway's certificate is renewed while the agent runs. The agent uses the new CA in the secret's
// file without a restart.
func TestCertificateRenewalWithoutRestart(t *testing.T) {
	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.TLS = &simulator.TLSOptions{Names: []string{"gw.example"}} })
	p.secret("gateway/ca", string(p.gw.CA()))
	p.spec.gateway = "    tls: true\n    tlsConfig: {caSecretRef: {name: gateway, key: ca}, serverName: gw.example}\n"
	first := p.repo.Commit("first", site()...)
	p.start("--gateway-url", p.gw.TLSURL())
	p.synced(first)

	require.NoError(t, p.gw.RotateTLS(nil, time.Time{}))
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("second")))
	s := p.reason("GatewayUntrusted")
	assert.Contains(t, s.Message, "caSecretRef")
	assert.Equal(t, first, s.Commit)
	p.secret("gateway/ca", string(p.gw.CA()))
	p.synced(second)
}
