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

// emptied pushes a commit that deletes the project line and is held. It returns the commits before and after the deletion.
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
	b.again() // the approval survives a restart of the agent
	b.target.ForceID = "meant"
	b.synced()
	assert.Empty(t, b.read(view))
	assert.NotEmpty(t, b.read("projects/keep/project.json"))
}

// Some of the reported files disappear before the approval: a user removes one, or the pair replicates the deletions of the other
// node. The approval still applies to the rest.
func TestLeaveForAMassDeletionIsAlsoForWhatIsLeftOfIt(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.emptied()
	require.NoError(t, os.Remove(filepath.Join(b.data, view)))
	b.target.ForceID = "meant"
	b.synced()
	assert.NoFileExists(t, filepath.Join(b.data, "projects/line/project.json"))
}

// If a smaller deletion was reported in between, the approval covers only that one.
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

// The reported deletion is one file of "keep". Project "line" was missing at that time, for example because of an unmounted volume,
// and is back at the approval. Its deletion was not reported, so the approval does not cover it.
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

// A note of an earlier version does not list the missing files, so it cannot show what was reported.
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

// Months later, the same commit is requested again and would delete more projects. The old approval does not cover them.
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

// With prune mirror, the same commit also deletes the gateway's own files. The approval for another spec does not cover them.
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

// If the gateway itself removes some of the files, the approval applies to the rest.
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

// An operator forces a sync for another commit, and the held commit is requested again before that sync succeeds. The request must
// not approve the deletion.
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

// While the commit is still wanted, neither a pause nor a dry run invalidates a later approval.
func TestLeaveForAMassDeletionIsForWhatWasToldBeforeWhateverDoesNotEndIt(t *testing.T) {
	for name, between := range map[string]func(b *bench){
		"a pause": func(b *bench) {
			b.target.Profile.Paused = true
			b.ended(sync.Held, v1alpha1.ReasonPaused)
		},
		"what lies there is delivered": func(b *bench) {
			b.again()
			require.NotNil(b.t, b.engine.Resume(b.t.Context(), b.conn, b.target))
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

// The gateway creates the deleted files again, and a sync is forced for another reason. The approval was already used.
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
