package sync_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
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

// The same where it was told anew in between: less goes than before, and what that leave allows is no more.
func TestLeaveForAMassDeletionIsForWhatWasToldLast(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.emptied()
	file := filepath.Join(b.data, view)
	require.NoError(t, os.Rename(file, file+".aside"))
	r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "2 files would be deleted")
	require.NoError(t, os.Rename(file+".aside", file))
	b.target.ForceID = "of two"
	r = b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "3 files would be deleted")
	b.target.ForceID = "of three"
	b.synced()
	assert.NoFileExists(t, file)
}

// What was told is one file of "keep". The whole of "line" was away then (moved aside, a mount that was missing, a copy of the
// pair that was not made yet) and is back when leave is given: nobody was told that it goes.
func TestLeaveForAMassDeletionIsNoneForWhatWasAwayWhenItWasTold(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(append(first(), withProject("keep"), withProject("other"))...)
	b.synced()
	line := filepath.Join(b.data, "projects/line")
	require.NoError(t, os.Rename(line, line+".aside"))
	b.push(gitserver.Delete("projects/keep/project.json"), gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "1 file would be deleted")
	assert.NotContains(t, r.Message, "line")
	require.NoError(t, os.Rename(line+".aside", line))
	b.target.ForceID = "for keep"
	r = b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "line")
	assert.FileExists(t, filepath.Join(line, "project.json"))
	assert.FileExists(t, filepath.Join(b.data, "projects/keep/project.json"))
	b.target.ForceID = "for both"
	b.synced()
	assert.NoFileExists(t, filepath.Join(line, "project.json"))
}

// A version before this one did not note what was away, so that its note cannot say what was told.
func TestLeaveForAMassDeletionIsNoneByTheNoteOfAnEarlierVersion(t *testing.T) {
	b := newBench(t, simulator.Options{})
	_, bad := b.emptied()
	all := sha256.New()
	for _, path := range []string{viewDir + "/resource.json", view, "projects/line/project.json"} {
		_, err := fmt.Fprintf(all, "%q\n", path)
		require.NoError(t, err)
	}
	note, err := json.Marshal(map[string]string{"commit": bad.String(), "files": fmt.Sprintf("%x", all.Sum(nil)), "force": ""})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(b.data, ".stoker/note-held"), note, 0o600))
	b.target.ForceID = "before"
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.NotEmpty(t, b.read(view))
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read(view))
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

// What the gateway removes by itself meanwhile is nothing that leave has to speak of; what it makes is.
func TestLeaveForAMassDeletionIsAlsoForFilesOfTheGatewayThatAreLeft(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Profile.Prune = v1alpha1.PruneMirror
	b.target.Profile.Mappings = b.target.Profile.Mappings[:1]
	b.push(first()...)
	b.synced()
	const one, two = "projects/own/one.json", "projects/own/two.json"
	require.NoError(t, os.MkdirAll(filepath.Join(b.data, "projects/own"), 0o755))
	b.put(one, "1")
	b.put(two, "2")
	b.push(gitserver.Delete("projects/line/project.json"))
	r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "3 files would be deleted")
	require.NoError(t, os.Remove(filepath.Join(b.data, one)))
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read(two))
	assert.Empty(t, b.read("projects/line/project.json"))
}

// A person forces a sync to get a commit through, and another commit is wanted again before that has ended: the request was
// never meant for what that one deletes.
func TestLeaveForAMassDeletionIsNoneWhenItWasAskedForAtAnotherCommit(t *testing.T) {
	for name, other := range map[string]func(b *bench){
		"one that does not end": func(b *bench) {
			require.NoError(b.t, b.gw.Fault(simulator.Fault{Route: "POST /data/api/v1/scan/*", Status: 400}))
			b.target.ForceID = "for the other"
			b.ended(sync.Error, v1alpha1.ReasonScanFailed)
			b.gw.ClearFaults()
		},
		"one that is there already": func(b *bench) {
			b.synced()
			b.target.ForceID = "for the other"
		},
		"one that is paused": func(b *bench) {
			b.target.ForceID, b.target.Profile.Paused = "for the other", true
			b.ended(sync.Held, v1alpha1.ReasonPaused)
			b.target.Profile.Paused = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			good, bad := b.emptied()
			b.target.Commit = good
			other(b)
			b.target.Commit = bad
			r := b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
			assert.Contains(t, r.Message, "3 files would be deleted")
			assert.NotEmpty(t, b.read(view))
			b.target.ForceID = "meant"
			b.synced()
			assert.Empty(t, b.read(view))
		})
	}
}

// While the commit is still wanted nothing takes leave away that comes later; nor does a dry run, which writes nothing.
func TestLeaveForAMassDeletionIsForWhatWasToldBeforeWhateverDoesNotEndIt(t *testing.T) {
	for name, between := range map[string]func(b *bench){
		"a pause": func(b *bench) {
			b.target.Profile.Paused = true
			b.ended(sync.Held, v1alpha1.ReasonPaused)
		},
		"what lies there is delivered": func(b *bench) {
			b.again()
			require.NotNil(b.t, b.engine.Resume(b.t.Context(), b.peers, b.target))
		},
		"a dry run of another commit": func(b *bench) {
			b.push(gitserver.Write(view, `{"two": 2}`))
			b.target.Profile.DryRun = true
			require.True(b.t, b.sync().DryRun)
		},
		"a dry run beside whoever works there": func(b *bench) {
			b.push(gitserver.Write(view, `{"two": 2}`))
			b.target.Profile.DryRun = true
			b.again()
			require.True(b.t, b.sync().DryRun)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			b.emptied()
			was := b.target
			between(b)
			b.target = was
			b.target.ForceID = "meant"
			b.synced()
			assert.Empty(t, b.read(view))
		})
	}
}

// The gateway makes again what was deleted, and a sync is forced for whatever reason: leave was used up.
func TestLeaveForAMassDeletionIsNoneForTheSameOnceMore(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Profile.Prune = v1alpha1.PruneMirror
	b.target.Profile.Mappings = b.target.Profile.Mappings[:1]
	b.push(append(first(), withProject("keep"))...)
	b.synced()
	const own = "projects/own/project.json"
	again := func() {
		require.NoError(t, os.MkdirAll(filepath.Join(b.data, "projects/own"), 0o755))
		b.put(own, project("", false))
	}
	again()
	b.push(gitserver.Write(view, `{"two": 2}`))
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	b.target.ForceID = "meant"
	b.synced()
	require.Empty(t, b.read(own))

	again()
	b.target.ForceID = "for another reason"
	b.ended(sync.Held, v1alpha1.ReasonMassDeletion)
	assert.NotEmpty(t, b.read(own))
	b.target.ForceID = "meant once more"
	b.synced()
	assert.Empty(t, b.read(own))
}
