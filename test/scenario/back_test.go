package scenario

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// back are settings that propose what a Designer saves in the project line, on a git server without a forge.
const back = "    provider: none\n    debounce: 1s\n    watchPaths: [\"projects/line/**\"]\n"

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
	first := p.repo.Commit("first", site()...)
	p.start()
	p.synced(first)
	p.git.Forget()

	p.save("maria's")
	s := p.proposal("Pushed")
	assert.Equal(t, branch, s.Proposal.Branch)
	assert.Equal(t, view("maria's"), p.repo.Content(branch, inGit+viewPath))
	assert.Equal(t, p.read(viewDir+"/resource.json"), p.repo.Content(branch, inGit+viewDir+"/resource.json"))
	assert.Equal(t, first, p.repo.Git("rev-parse", branch+"^"))
	assert.Equal(t, "maria (Ignition)", p.repo.Git("log", "-1", "--format=%an", branch))
	assert.Equal(t, inGit+viewDir+"/resource.json\n"+inGit+viewDir+"/thumbnail.png\n"+inGit+viewPath, p.repo.Git("diff", "--name-only", "main", branch))

	// The merge brings nothing that the gateway does not have: no write. Who saved the files is not known, so the gateway scans them.
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
	p.repo.Commit("first", site()...)
	p.start()
	p.synced(p.repo.Head())
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
