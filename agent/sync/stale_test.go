package sync_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A user edits a file in git without updating the signature in resource.json. A gateway that compares only resource.json would keep
// the old file, and no API would show that.
func TestHandEditedResource(t *testing.T) {
	signed := func(file string) string {
		return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{` +
			`"lastModification":{"actor":"maria","timestamp":"2026-01-01T00:00:00Z"},"lastModificationSignature":"00ff"}}`
	}
	b := newBench(t, simulator.Options{Unknowns: simulator.Unknowns{SkipUnchanged: true}})
	b.push(append(firstCommit(), gitserver.Write(viewDir+"/resource.json", signed("view.json")), gitserver.Write(db+"/resource.json", signed("config.json")))...)
	b.synced()
	// sequence: one edit after the other
	for _, edited := range []string{`{"two": 2}`, `{"three": 3}`} {
		b.push(gitserver.Write(view, edited), gitserver.Write(db+"/config.json", edited))
		b.synced()
		sum := sha256.Sum256([]byte(edited))
		assert.Equal(t, hex.EncodeToString(sum[:]), b.gw.Data.Loaded(viewDir)["view.json"])
		assert.Equal(t, hex.EncodeToString(sum[:]), b.gw.Data.Loaded(db)["config.json"])
	}
	drift, err := b.engine.Drift(t.Context(), true)
	assert.NoError(t, err)
	assert.Zero(t, drift.Files, "%v", drift.Paths)
	b.gw.Requests.Reset()
	b.target.Force = "again"
	r := b.synced()
	assert.Zero(t, r.Files.Modified, "a forced sync changes nothing: %s", r)
}
