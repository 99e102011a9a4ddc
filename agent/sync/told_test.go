package sync

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// deleting returns a plan that deletes n files.
func deleting(n int) *plan.Changes {
	c := &plan.Changes{To: plan.ID{1}}
	for i := range n {
		c.List = append(c.List, plan.Change{Path: fmt.Sprintf("projects/line/%06d.json", i), Op: plan.Delete})
	}
	return c
}

func TestAToldDeletionCoversItsPartsWhileItIsShortEnoughForAList(t *testing.T) {
	for n, parts := range map[int]bool{1: true, maxTold: true, maxTold + 1: false} {
		all := deleting(n)
		note, err := json.Marshal(heldBy(all))
		require.NoError(t, err)
		d, _ := openDir(t)
		require.NoError(t, d.SetNote(heldNote, note), "%d files", n)
		var told held
		require.NoError(t, json.Unmarshal(note, &told))

		assert.True(t, told.covers(all), "%d files", n)
		less := deleting(n)
		less.List = slices.Delete(less.List, 0, 1)
		assert.Equal(t, parts, told.covers(less), "%d files, and one less", n)
		assert.False(t, told.covers(deleting(n+1)), "%d files, and one more", n)
	}
}

// The force request is an annotation value, which may be long, too.
func TestTheLongestListOfWhatWasToldFitsIntoANote(t *testing.T) {
	d, _ := openDir(t)
	h := heldBy(deleting(maxTold))
	for i := range h.Told {
		h.Told[i] = 1<<64 - 1
	}
	h.Force = strings.Repeat("x", 256<<10)
	note, err := json.Marshal(h)
	require.NoError(t, err)
	assert.NoError(t, d.SetNote(heldNote, note))
}
