package sync_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// A Designer saves a view between the plan, which repairs only view.json, and its replacement. If the sync kept the resource.json
// of that save, a gateway that compares only resource.json would keep the Designer's view.
func TestDesignerSaveDuringRepair(t *testing.T) {
	const git = `{"one": 1}`
	b := newBench(t, simulator.Options{Unknowns: simulator.Unknowns{SkipUnchanged: true}})
	b.push(append(firstCommit(), gitserver.Write(view, git), gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", git)))...)
	b.synced()
	id, err := b.gw.Designers.Open("anna", "line")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(b.data, view), []byte(`{"by": "hand"}`), 0o644))
	saves := 0
	b.engine.Progress = func(step string, _, _ int) {
		if step != "apply" {
			return
		}
		saves++
		assert.NoError(t, b.gw.Designers.SaveResource(t.Context(), id, strings.TrimPrefix(viewDir, "projects/line/"),
			map[string][]byte{"view.json": fmt.Appendf(nil, `{"anna": %d}`, saves)}, true))
	}
	b.target.Repair = true
	r := b.synced()
	assert.Equal(t, 2, saves, "the sync plans again, with resource.json: %s", r)
	assert.Len(t, r.Notes, 1, "one note: %v", r.Notes)
	assert.Equal(t, git, b.read(view))
	is := sha256.Sum256([]byte(git))
	assert.Equal(t, hex.EncodeToString(is[:]), b.gw.Data.Loaded(viewDir)["view.json"], "the gateway has loaded the file on the disk")
	d, err := b.engine.Open()
	require.NoError(t, err)
	lost, err := d.LostAndFound()
	require.NoError(t, err)
	var saved []string
	for _, l := range lost {
		content, err := os.ReadFile(filepath.Join(b.data, ".stoker/lost+found", l.File))
		require.NoError(t, err)
		saved = append(saved, filepath.Base(l.Path)+" "+string(content[:min(len(content), 11)]))
	}
	slices.Sort(saved)
	assert.Len(t, saved, 2, "both files of the last save; the Designer replaced the earlier one")
	assert.Contains(t, saved, `view.json {"anna": 2}`)
	assert.True(t, slices.ContainsFunc(saved, func(s string) bool { return strings.HasPrefix(s, "resource.json ") }), "%v", saved)
}
