package scenario

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

func TestBrokenCommitKeepsLastGood(t *testing.T) {
	p := newPlant(t, withoutGateway)
	good := p.repo.Commit("good", site()...)
	p.start()
	p.synced(good)
	for name, c := range map[string]struct {
		edits  []gitserver.Edit
		reason string
		says   string
	}{
		"invalid JSON": {
			[]gitserver.Edit{gitserver.Write(inGit+viewPath, "{\n  \"root\": {\n    \"type\": oops\n  }\n}")},
			"ConfigSyntaxError", "view.json:3",
		},
		"resource.json without attributes": { // it would fault the whole gateway at its next start
			[]gitserver.Edit{gitserver.Write(inGit+viewDir+"/resource.json", `{"scope": "G", "version": 1, "files": ["view.json"]}`)},
			"ConfigSyntaxError", "attributes",
		},
		"symbolic link": { // F1
			[]gitserver.Edit{gitserver.Symlink(inGit+"projects/line/link.json", "/etc/passwd")},
			"UnsafePath", "link.json",
		},
		"link to a directory outside": { // F1
			[]gitserver.Edit{gitserver.Symlink(inGit+"projects/line/up", "../../../..")},
			"UnsafePath", "up",
		},
		"a Git LFS pointer": {
			[]gitserver.Edit{gitserver.Write(inGit+"projects/line/big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n")},
			"LFSPointer", "big.bin",
		},
		"paths that differ in case only": {
			[]gitserver.Edit{gitserver.Write(inGit+"projects/line/A.json", "{}"), gitserver.Write(inGit+"projects/line/a.json", "{}")},
			"PathCollision", "a.json",
		},
	} {
		t.Run(name, func(t *testing.T) {
			added := "projects/line/" + good[:7] + ".json"
			bad := p.repo.Commit("bad", append(c.edits, gitserver.Write(inGit+added, "{}"))...)
			s := p.reason(c.reason)
			assert.Contains(t, s.Message, c.says)
			assert.Equal(t, good, s.Commit)
			assert.Equal(t, bad, s.Target)
			p.check(good)
			assert.Empty(t, p.read(added), "no file of the commit may be written")

			p.repo.ForcePush(good)
			good = p.repo.Commit("fixed", gitserver.Write(inGit+added, "{}"))
			p.synced(good)
		})
	}
}

// The agent reports the reason of each failure of a remote. The gateway keeps the last good commit, and the agent
// recovers by itself.
func TestBrokenRemoteRecovers(t *testing.T) {
	p := newPlant(t, withoutGateway)
	last := p.started()
	elsewhere, err := gitserver.Start(filepath.Join(p.dir, "git"), gitserver.Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, elsewhere.Close()) }()

	for i, c := range []struct {
		name, reason string
		fault        gitserver.Fault
	}{
		{"500", "GitUnreachable", gitserver.Status(500)},
		{"429", "GitThrottled", gitserver.Throttle(time.Second)},
		{"401", "AuthFailed", gitserver.Status(401)},
		{"403", "AuthFailed", gitserver.Status(403)},
		{"404", "RefNotFound", gitserver.Status(404)},
		{"redirect to another host", "RedirectRefused", gitserver.Redirect(elsewhere.URL(""))}, // F9
		{"truncated pack", "GitUnreachable", gitserver.Truncate(300).On(gitserver.UploadPack)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.git.Inject(c.fault)
			next := p.repo.Commit(c.name, gitserver.Write(inGit+viewPath, view(fmt.Sprint("after ", c.name, i))))
			s := p.await(c.name, func(s state) bool { return s.Reason == c.reason })
			assert.Equal(t, last, s.Commit, "the last good commit must stay")
			assert.NotEqual(t, "Synced", s.Phase)
			p.checkForeign()
			p.git.Heal()
			p.saveSpec() // a changed spec ends the backoff
			p.synced(next)
			last = next
		})
	}
	for _, r := range elsewhere.Requests() {
		assert.False(t, r.Authorization, "F9: a credential went to another host")
	}
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T")
}

func TestGitOutage(t *testing.T) {
	p := newPlant(t)
	head := p.started()
	require.NoError(t, p.git.Close())
	s := p.reason("GitUnreachable")
	assert.Equal(t, head, s.Commit)
	p.check(head)
	p.kill() // a restarted agent needs only its disk, not git
	p.start()
	p.reason("GitUnreachable")
	p.check(head)
	p.stop()
}

// F12: The object store is only a cache. Damaging it never endangers the files on the gateway.
func TestDamagedStoreIsRebuilt(t *testing.T) {
	short := []string{"missing store", "truncated files", "foreign files"} // a test of agent/repo has every kind of damage
	for name, damage := range map[string]func(t *testing.T, store string){
		"missing store": func(t *testing.T, store string) { require.NoError(t, os.RemoveAll(store)) },
		"file instead of a store": func(t *testing.T, store string) {
			require.NoError(t, os.RemoveAll(store))
			require.NoError(t, os.WriteFile(store, []byte("?"), 0o644))
		},
		"truncated files": func(t *testing.T, store string) {
			eachFile(t, store, func(f string, n int64) error { return os.Truncate(f, n/2) })
		},
		"empty files": func(t *testing.T, store string) {
			eachFile(t, store, func(f string, _ int64) error { return os.Truncate(f, 0) })
		},
		"zeroed files": func(t *testing.T, store string) {
			eachFile(t, store, func(f string, n int64) error { return os.WriteFile(f, make([]byte, n), 0o644) })
		},
		"foreign files": func(t *testing.T, store string) {
			eachDir(t, store, func(d string) error { return os.WriteFile(filepath.Join(d, "HEAD.lock"), nil, 0o644) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !slices.Contains(short, name) {
				t.Skip("left out by -short")
			}
			p := newPlant(t, withoutGateway)
			head := p.repo.Commit("first", site()...)
			p.delivers()
			damage(t, filepath.Join(p.dir, "objects", "stoker.git"))
			p.checkQuiet(head) // the same commit needs no object
			next := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
			code, out := p.once()
			if code != 0 { // at most two syncs
				code, out = p.once()
			}
			require.Equal(t, 0, code, out)
			p.check(next)
			p.checkQuiet(next)
		})
	}
}

func eachFile(t *testing.T, dir string, do func(file string, size int64) error) {
	t.Helper()
	n := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		n++
		_ = os.Chmod(path, 0o644)
		return do(path, fi.Size())
	}))
	require.Positive(t, n, "the store has no file")
}

func eachDir(t *testing.T, dir string, do func(dir string) error) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return do(path)
	}))
}

// F14: Kills the real process at many points of a large sync.
func TestKilledSyncIsFinished(t *testing.T) {
	p := newPlant(t, withoutGateway)
	var many, changed []gitserver.Edit
	for i := range 400 {
		path := fmt.Sprintf("%sprojects/line/ignition/script-python/k%d/mod/code.py", inGit, i)
		many = append(many, gitserver.Write(path, fmt.Sprintf("v = 1 # %d\n", i)))
		if i%5 == 0 {
			changed = append(changed, gitserver.Delete(path))
		} else {
			changed = append(changed, gitserver.Write(path, fmt.Sprintf("v = 2 # %d\n", i)))
		}
	}
	first := p.repo.Commit("first", site(many...)...)
	p.delivers()
	second := p.repo.Commit("second", append(changed, gitserver.Write(inGit+viewPath, view("two")))...)
	began := time.Now()
	code, out := p.once() // measures an undisturbed sync
	took := time.Since(began)
	require.Equal(t, 0, code, out)
	midway, kills := 0, 12
	if testing.Short() {
		kills = 4
	}
	for n := 0; n < kills || midway == 0 && n < 60; n++ {
		p.repo.ForcePush([]string{first, second}[n%2])
		target := p.repo.Head()
		p.start()
		if n < kills/2 {
			time.Sleep(took * time.Duration(n+1) / time.Duration(kills/2+2)) // spread over the whole sync; a kill at any instant must do no harm
		} else {
			p.awaitJournal(target)
		}
		p.kill()
		if _, err := os.Stat(p.journal()); err == nil {
			midway++
		}
		p.checkForeign()
		p.delivers("--log-level=debug")
		p.check(target)
		p.checkManifest(target)
	}
	assert.Positive(t, midway, "no kill happened while files moved")
	p.checkQuiet(p.repo.Head())
}

func (p *plant) journal() string { return filepath.Join(p.data, ".stoker", "journal") }

// awaitJournal waits until the agent is about to move files, or has moved them.
func (p *plant) awaitJournal(target string) {
	p.t.Helper()
	for n, deadline := 1, time.Now().Add(liveness); time.Now().Before(deadline); n++ {
		if _, err := os.Stat(p.journal()); err == nil {
			return
		}
		if n%100 != 0 { // a query takes longer than some syncs
			time.Sleep(100 * time.Microsecond)
			continue
		}
		if s, ok := p.state(); ok && s.Phase == "Synced" && s.Commit == target {
			return
		}
	}
	p.t.Fatal("the sync did not start")
}

// The next start recovers from a crash even if git is unavailable. Otherwise the gateway may read files of
// two commits.
func TestCrashRecoveryWithoutGit(t *testing.T) {
	p := newPlant(t, withoutGateway)
	edits := func(n int) []gitserver.Edit {
		var list []gitserver.Edit
		for i := range 300 {
			list = append(list, gitserver.Write(fmt.Sprintf("%sprojects/line/ignition/script-python/k%d/mod/code.py", inGit, i), fmt.Sprintf("v = %d # %d\n", n, i)))
		}
		return list
	}
	commits := []string{p.repo.Commit("0", site(edits(0)...)...)}
	p.delivers()
	for n := 1; ; n++ {
		require.Less(t, n, 60, "no kill happened while files moved")
		commits = append(commits, p.repo.Commit(fmt.Sprint(n), edits(n)...))
		p.start()
		p.awaitJournal(commits[n])
		p.kill()
		if _, err := os.Stat(p.journal()); err == nil {
			break
		}
		p.delivers()
	}
	require.NoError(t, p.git.Close())
	p.start()
	s := p.await("the commit on the disk is reported", func(s state) bool { return s.Reason == "GitUnreachable" && s.Commit != strings.Repeat("0", 40) })
	assert.Contains(t, commits[len(commits)-2:], s.Commit)
	p.check(s.Commit)
	p.stop()
	p.checkManifest(s.Commit)
}

func TestSIGTERMDuringSync(t *testing.T) {
	p := newPlant(t, withoutGateway)
	first := p.started()
	before := p.git.Stats().UploadPacks
	p.git.Inject(gitserver.Stall(200).On(gitserver.UploadPack))
	p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.eventually("the fetch is in progress", func() bool { return p.git.Stats().UploadPacks > before })
	began := time.Now()
	p.stop()
	assert.Less(t, time.Since(began), 30*time.Second, "SIGTERM must end a fetch at once")
	p.check(first)
	p.checkManifest(first)
}

func TestSecondAgentIsRefused(t *testing.T) {
	p := newPlant(t, withoutGateway)
	head := p.started()
	for name, args := range map[string][]string{
		"single sync":        {"--once"},
		"daemon":             nil,
		"other object store": {"--repo-dir", filepath.Join(p.dir, "objects-of-another")},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program.Build(t, "agent"), p.args(args...)...)
			cmd.Env = []string{"HOME=" + p.dir}
			out, err := cmd.CombinedOutput() // without --once, the agent also exits
			require.Error(t, err, "%s", out)
			assert.Equal(t, 1, cmd.ProcessState.ExitCode())
			assert.Contains(t, string(out), fmt.Sprint(p.agent.PID()), "the message must name the process that holds the lock")
		})
	}
	p.check(head)
}

func TestBrokenGatewaySyncKeepsLastGood(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.started()
	require.NoError(t, os.WriteFile(p.file(), []byte("apiVersion: stoker.io/v1alpha1\nkind: GatewaySync\nspec: {git: {repo: 7}}\n"), 0o644))
	p.await("the error names the field", func(s state) bool { return s.Reason == "ProfilesInvalid" && strings.Contains(s.Message, "repo") })
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.await("the last good spec applies", func(s state) bool { return s.Commit == second })
	p.saveSpec()
	p.synced(second)
}

// The validation service denies a commit, and allows the next one.
func TestValidationWebhook(t *testing.T) {
	p := newPlant(t, withoutGateway)
	var allowed atomic.Bool
	check := credential.NewChecker()
	validator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		proof, ok := credential.Read(r.Header, time.Now())
		assert.True(t, ok && proof.Signed() && check.Verify(proof, body, []secret.String{secret.New("S3CR3T-hmac")}, 1))
		var q struct{ UID string }
		assert.NoError(t, json.Unmarshal(body, &q))
		_ = json.NewEncoder(w).Encode(map[string]any{"uid": q.UID, "allowed": allowed.Load(), "message": "CHG-4711 is open"})
	}))
	t.Cleanup(validator.Close)
	p.secret("validator/hmac", "S3CR3T-hmac")
	p.secret("validator/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: validator.Certificate().Raw})))
	p.spec.top = "  validation:\n    webhook:\n      url: " + validator.URL + "/plan\n" +
		"      secretRef: {name: validator, key: hmac}\n      caSecretRef: {name: validator, key: ca.crt}\n"
	first := p.repo.Commit("first", site()...) // the first delivery to a gateway is not reviewed
	p.saveSpec()
	p.start()
	p.synced(first)

	p.repo.Commit("bad", gitserver.Write(inGit+viewPath, view("bad")))
	held := p.reason("ValidationDenied")
	assert.Equal(t, "Held", held.Phase)
	assert.Equal(t, first, held.Commit)
	assert.Contains(t, held.Message, "CHG-4711 is open")
	assert.Equal(t, view("one"), p.read(viewPath))
	allowed.Store(true)
	p.synced(p.repo.Commit("good", gitserver.Write(inGit+viewPath, view("good"))))
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T-hmac")
	p.stop()
}
