package sync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

func TestEmbeddedSecret(t *testing.T) {
	const planted = `{"url": "jdbc", "password": {"type": "Embedded", "data": {"encrypted_key": "planted-k", "iv": "i", "ciphertext": "planted-c"}}}`
	says := func(r *sync.Report) (n int) {
		for _, note := range r.Notes {
			assert.NotContains(t, note, "planted")
			if assert.Contains(t, note, db+"/config.json") {
				n++
			}
		}
		return n
	}
	t.Run("warn", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.push(append(firstCommit(), gitserver.Write(db+"/config.json", planted))...)
		assert.Equal(t, 1, says(b.synced()))
		assert.Equal(t, planted, b.read(db+"/config.json"))
		b.push(gitserver.Write(view, `{"one": 2}`))
		assert.Zero(t, says(b.synced()), "no note about a file that the sync does not write")
	})
	t.Run("refuse", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.push(firstCommit()...)
		b.synced()
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(gitserver.Write(db+"/config.json", planted), gitserver.Write(view, `{"one": 2}`))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonEmbeddedSecret)
		assert.Contains(t, r.Message, db+"/config.json")
		assert.NotContains(t, r.Message, "planted")
		assert.Equal(t, `{"one": 1}`, b.read(view), "nothing of the commit is written")
		b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
		require.Empty(t, b.synced().Notes)
	})
	t.Run("a file of an earlier commit", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(append(firstCommit(), gitserver.Write(db+"/config.json", planted))...)
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretWarn
		b.synced()
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.synced() // the policy does not apply to files of earlier commits
	})
}
