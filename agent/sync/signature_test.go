package sync_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// F24: a commit that is not signed is never planned, and what is on the gateway stays.
func TestSignedCommits(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	file := filepath.Join(t.TempDir(), "id")
	require.NoError(t, os.WriteFile(file, []byte(key.Private), 0o600))
	begin := func(t *testing.T) (b *bench, signed func(...gitserver.Edit) plan.ID) {
		b = newBench(t, simulator.Options{})
		b.conn.Verifier = repo.NewVerifier(v1alpha1.GitVerify{Mode: v1alpha1.VerifyHead}, "spec.git.verify.keysSecretRef",
			func() ([]byte, error) { return []byte(key.Public), nil })
		return b, func(edits ...gitserver.Edit) plan.ID {
			b.push()
			b.target.Commit = repotest.ParseID(t, b.repo.SignedCommit(file, "signed", edits...))
			return b.target.Commit
		}
	}
	t.Run("the first commit", func(t *testing.T) {
		b, _ := begin(t)
		b.push(firstCommit()...)
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, v1alpha1.ClassStalled, r.Class())
		assert.Nil(t, r.Changes, "no plan")
		assert.Empty(t, b.read(view))
	})
	t.Run("a later commit", func(t *testing.T) {
		b, signed := begin(t)
		good := signed(firstCommit()...)
		b.synced()
		b.push(gitserver.Write(view, `{"one": 2}`))
		unsigned := b.target.Commit
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, good, r.Commit)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Contains(t, r.Message, "commit "+unsigned.Short()+" is not signed")

		for name, change := range map[string]func(*sync.Task){
			"forced": func(t *sync.Task) { t.Force = "now" }, "a rollback": func(t *sync.Task) { t.RequestedRollback = true },
			"a dry run": func(t *sync.Task) { t.Profile.DryRun = true }, "before the start": func(t *sync.Task) { t.BeforeStart = true },
		} {
			t.Run(name, func(t *testing.T) {
				was := b.target
				defer func() { b.target = was }()
				change(&b.target)
				b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
				assert.Equal(t, `{"one": 1}`, b.read(view))
			})
		}
		signed(gitserver.Write(view, `{"one": 3}`))
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view), "a signed commit after an unsigned one")
	})
	t.Run("delivered before verification", func(t *testing.T) {
		b, _ := begin(t)
		v := b.conn.Verifier
		b.conn.Verifier = nil
		b.push(firstCommit()...)
		b.synced()
		b.conn.Verifier = v
		b.synced()
		b.put(view, `{"edited": true}`)
		b.target.Repair = true
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, `{"edited": true}`, b.read(view), "no file of the unsigned commit is written again")
	})
}
