package propose

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
)

func TestSignedProposal(t *testing.T) {
	const branch, name = "gateway-changes/plants/a", "spec.bidirectional.signing: key id of Secret sign"
	for _, key := range []repotest.SigningKey{repotest.NewSSHKey(t, "ed25519", ""), repotest.NewOpenPGPKey(t, "", nil)} {
		t.Run(string(key.Format), func(t *testing.T) {
			pl := newPlant(t)
			g := pl.gateway("a")
			g.settings.Sign = repo.NewSigner(key.Format, name, repotest.Token(key.Private))
			requireSigned := func(commits int) {
				t.Helper()
				list := strings.Fields(pl.repo.Git("rev-list", "main.."+branch))
				require.Len(t, list, commits)
				for _, commit := range list {
					require.NoError(t, key.Check(pl.repo.Git("cat-file", "commit", commit)+"\n"))
					require.NoError(t, key.Verify(t, pl.repo.Dir, commit))
				}
			}
			g.save(`{"v":2}`)
			g.settle(minute)
			require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			requireSigned(1)
			g.save(`{"v":3}`)
			g.settle(minute)
			requireSigned(2)
			// The trailers of a signed commit rebuild a lost record.
			g.notes.content = map[string][]byte{}
			g.restart()
			g.settle(2 * minute)
			require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			g.save(`{"v":4}`)
			g.settle(2 * minute)
			requireSigned(3)
			assert.Len(t, pl.hub.list, 1)
		})
	}
	t.Run("no push without a usable key", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		text := repotest.NewSSHKey(t, "ed25519", "S3CR3T").Private
		g.settings.Sign = repo.NewSigner(v1alpha1.SigningSSH, name, func() (secret.String, error) { return secret.New(text), nil })
		g.save(`{"v":2}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ReasonAuthFailed, g.last.Reason)
		assert.Contains(t, g.last.Message, name+" is protected by a passphrase")
		assert.Contains(t, g.last.Message, "put an ssh private key without a passphrase there")
		assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"))
		assert.Empty(t, pl.hub.list)

		key := repotest.NewSSHKey(t, "ed25519", "")
		text = key.Private
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Empty(t, g.last.Reason)
		require.NoError(t, key.Check(pl.repo.Git("cat-file", "commit", branch)+"\n"))
	})
}
