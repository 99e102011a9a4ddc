package sync_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// emptied brings a gateway to a commit that has lost the project line, which is held, and returns that commit and the one
// before.
func (b *bench) emptied() (good, bad plan.ID) {
	b.t.Helper()
	good = b.push(append(first(), withProject("keep"))...)
	b.synced()
	bad = b.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(b.t, r.Message, "3 files would be deleted")
	return good, bad
}

func withProject(name string) gitserver.Edit {
	return gitserver.Write("projects/"+name+"/project.json", project("", false))
}

func TestAMassDeletionIsMadeWhenItIsAskedForAfterItWasHeld(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.emptied()
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	b.again() // the leave needs nothing that a process remembers
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read(view))
	assert.NotEmpty(t, b.read("projects/keep/project.json"))
}

// What was told goes meanwhile: somebody removes a file by hand, or the other node of a pair is faster, and its deletions are
// copied. That is the same deletion.
func TestLeaveForAMassDeletionIsAlsoForWhatIsLeftOfIt(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.emptied()
	require.NoError(t, os.Remove(filepath.Join(b.data, view)))
	b.target.ForceID = "meant"
	b.synced()
	assert.NoFileExists(t, filepath.Join(b.data, "projects/line/project.json"))
}

// A commit is asked for again, months later, when more projects are there: nobody was told that those go, too.
func TestLeaveForAMassDeletionIsNoneForAnotherPlanOfThatCommit(t *testing.T) {
	b := newBench(t, simulator.Options{})
	good, bad := b.emptied()
	b.target.Commit = good
	b.synced()
	b.push(append(first(), withProject("two"), withProject("three"))...)
	b.synced()

	b.target.Commit, b.target.ForceID = bad, "of that day"
	r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "5 files would be deleted")
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.NotEmpty(t, b.read("projects/two/project.json"))
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read("projects/two/project.json"))
}

// The same commit, by another spec: what the gateway has beside git goes with prune mirror.
func TestLeaveForAMassDeletionIsNoneForAnotherSpec(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Profile.Mappings = b.target.Profile.Mappings[:1]
	b.emptied()
	require.NoError(t, os.Mkdir(filepath.Join(b.data, "projects/own"), 0o755))
	b.put("projects/own/project.json", project("", false))
	b.target.Profile.Prune = v1alpha1.PruneMirror
	b.target.ForceID = "with the spec"
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.NotEmpty(t, b.read("projects/own/project.json"))
	assert.NotEmpty(t, b.read(view))
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read("projects/own/project.json"))
}
