package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gitserver"
)

// edited is the content of a file after a user has changed it on the gateway.
const edited = `{"edited": "on the gateway"}`

// F15: An edit on the gateway is drift until git changes the same file; then it is a conflict.
func TestGatewayEditEndsInLostFound(t *testing.T) {
	p := newPlant(t)
	p.started()

	p.write(viewPath, edited)
	s := p.await("drift", func(s state) bool { return s.Drift != nil && s.Drift.Files == 1 })
	assert.Equal(t, edited, p.read(viewPath), "the agent must report drift without a repair")
	assert.Equal(t, "Synced", s.Phase, "drift must not change the phase")

	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	s = p.synced(second)
	assert.Contains(t, p.lostAndFound(), edited)
	assert.Len(t, p.lostAndFound(), s.Report.Files.Saved)
	p.await("no drift", func(s state) bool { return s.Drift != nil && s.Drift.Files == 0 })
	p.stop()
	p.checkQuiet(second)
}

func TestDriftRepair(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.spec.defaults = "      driftPolicy: repair\n"
	head := p.started()

	p.write(viewPath, edited)
	require.NoError(t, os.Remove(filepath.Join(p.data, "projects/line/project.json")))
	script := filepath.Join(p.data, "projects/line/ignition/script-python/pkg1/mod/code.py")
	link := filepath.Join(p.data, "link")
	require.NoError(t, os.Symlink("/etc/passwd", link))
	require.NoError(t, os.Rename(link, script)) // F15: a link replaces the file
	p.eventually("repaired", func() bool {
		return p.read(viewPath) == view("one") && p.read("projects/line/project.json") == projectJSON("Line") &&
			p.read("projects/line/ignition/script-python/pkg1/mod/code.py") == "def run():\n    return 1\n"
	})
	p.synced(head)
	assert.Contains(t, p.lostAndFound(), edited)
	p.stop()
	p.checkQuiet(head)
}

func TestConflictUnderHold(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.spec.defaults = "      conflictPolicy: hold\n"
	first := p.started()
	p.write(viewPath, edited)
	p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")), gitserver.Write(inGit+"projects/line/new.json", "{}"))
	s := p.reason("ConflictDetected")
	assert.Equal(t, "Held", s.Phase)
	assert.Contains(t, s.Message, viewPath)
	assert.Equal(t, edited, p.read(viewPath))
	assert.Empty(t, p.read("projects/line/new.json"), "a held sync must write nothing")
	assert.Equal(t, first, s.Commit)

	p.stop()
	code, _ := p.once()
	assert.Equal(t, 6, code, "a held sync must have its own exit code")
	p.start()

	third := p.repo.Commit("git takes the edit", gitserver.Write(inGit+viewPath, edited))
	p.synced(third)
	assert.Empty(t, p.lostAndFound())
}

func TestGatewayWins(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.spec.defaults = "      conflictPolicy: gatewayWins\n"
	p.started()
	p.write(viewPath, edited)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")), gitserver.Write(inGit+"projects/line/new.json", "{}"))
	s := p.await("Synced", func(s state) bool { return s.Phase == "Synced" && s.Commit == second })
	assert.Equal(t, 1, s.Report.Files.Kept)
	assert.Equal(t, edited, p.read(viewPath))
	assert.Equal(t, "{}", p.read("projects/line/new.json"))
	p.checkForeign()
}

// On a gateway that already has files, equal files are adopted, different ones are conflicts, and files
// that git does not have stay.
func TestExistingGatewayIsAdopted(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.write("projects/line/project.json", projectJSON("Line"))
	p.write(viewPath, edited)
	p.write(viewDir+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["view.json"],"attributes":{"lastModification":{"actor":"admin","timestamp":"2026-01-01T00:00:00Z"}}}`)
	p.foreign("projects/line/com.inductiveautomation.perspective/views/own/view.json", `{"mine": true}`)
	head := p.repo.Commit("first", site()...)
	p.start()
	s := p.synced(head)
	assert.Contains(t, p.lostAndFound(), edited)
	assert.Len(t, p.lostAndFound(), s.Report.Files.Saved, "only files that differ may be saved")
	p.stop()
	p.checkQuiet(head)
}

func TestMassDeletionHeldUntilConfirmed(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.started(gitserver.Write(inGit+"projects/other/project.json", projectJSON("Other")))
	second := p.repo.Commit("renamed", gitserver.Delete(inGit+"projects/line"))
	s := p.reason("MassDeletion")
	assert.Contains(t, s.Message, "line")
	assert.Equal(t, view("one"), p.read(viewPath))
	p.spec.annotations = map[string]string{"stoker.io/confirm-deletion": second[:7]}
	p.saveSpec()
	p.synced(second)
	assert.Empty(t, p.read(viewPath))
	p.stop()
	p.checkQuiet(second)

	third := p.repo.Commit("and again", gitserver.Delete(inGit+"projects/other"))
	code, out := p.once()
	assert.Equal(t, 6, code, "the confirmation must count for one commit only: %s", out)
	assert.Contains(t, out, "MassDeletion", third)
}

func TestForceSyncKeepsMassDeletionHeld(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site(gitserver.Write(inGit+"projects/other/project.json", projectJSON("Other")))...)
	p.delivers()
	p.spec.annotations = map[string]string{"stoker.io/force-sync": "repair it"}
	p.repo.Commit("broken", gitserver.Write(inGit+viewPath, "{"))
	code, out := p.once()
	require.Equal(t, 1, code, out)
	last := p.repo.Commit("fixed, and a project dropped", gitserver.Write(inGit+viewPath, view("two")), gitserver.Delete(inGit+"projects/other"))
	for range 2 { // waiting does not approve it either
		code, out = p.once()
		require.Equal(t, 6, code, out)
		require.Contains(t, out, "MassDeletion", first)
		require.NotEmpty(t, p.read("projects/other/project.json"))
	}
	p.spec.annotations["stoker.io/confirm-deletion"] = last
	p.delivers()
	assert.Empty(t, p.read("projects/other/project.json"))
	p.checkQuiet(p.repo.Head())
}

// File events suffice: with a polling interval of hours, the agent still notices a changed spec and an
// edit on the gateway.
func TestFileEventsWithoutPolling(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.spec.slow = true
	p.spec.defaults = "      driftPolicy: repair\n"
	p.started()
	p.write(viewPath, edited)
	p.eventually("the edit is repaired", func() bool { return p.read(viewPath) == view("one") })
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.saveSpec()
	p.synced(second)
}

func TestForceSyncRepairs(t *testing.T) {
	p := newPlant(t, withoutGateway)
	head := p.started()
	file := filepath.Join(p.data, viewPath)
	fi, err := os.Stat(file)
	require.NoError(t, err)
	torn := []byte(p.read(viewPath))
	torn[len(torn)/2] ^= 1
	require.NoError(t, os.WriteFile(file, torn, 0o644))
	require.NoError(t, os.Chtimes(file, fi.ModTime(), fi.ModTime())) // the same size and time
	p.spec.annotations = map[string]string{"stoker.io/force-sync": "1"}
	p.saveSpec()
	p.eventually("repaired", func() bool { return p.read(viewPath) == view("one") })
	p.synced(head)
}

func TestPauseAndResume(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.started()
	p.spec.annotations = map[string]string{"stoker.io/paused": "true"}
	p.saveSpec()
	s := p.reason("Paused")
	assert.Equal(t, first, s.Commit, "a paused agent must report the commit on the disk")
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.await("the target moves", func(s state) bool { return s.Target == second })
	assert.Equal(t, view("one"), p.read(viewPath))
	p.spec.annotations = nil
	p.saveSpec()
	p.synced(second)
}

// lostAndFound returns the contents of the files that were saved in lost+found, without the indexes and links.
func (p *plant) lostAndFound() []string {
	p.t.Helper()
	var out []string
	root := filepath.Join(p.data, ".stoker", "lost+found")
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || d.IsDir() || filepath.Dir(path) == root {
			return err
		}
		if d.Type()&os.ModeSymlink != 0 {
			return nil
		}
		b, err := os.ReadFile(path)
		out = append(out, string(b))
		return err
	})
	require.NoError(p.t, err, fmt.Sprint(root))
	return out
}
