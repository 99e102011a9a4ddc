//go:build !race

// The race detector allocates memory of its own.

package propose

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/propose/guard"
)

// TestPackMemory: the agent allocates memory for a large file once. The pack takes the place of the content.
func TestPackMemory(t *testing.T) {
	s := newScene(t, withView(t, `{"v":1}`))
	picture := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(picture) // never fails
	files := map[string]string{"view.json": `{"v":2}`, "thumbnail.png": string(picture)}
	for name, content := range files {
		s.disk.Write(view+name, content)
	}
	s.disk.Write(view+"resource.json", signed(t, "maria", files))
	b, limits, g := s.base(), Limits{FileBytes: 32 << 20, TotalBytes: 32 << 20, Files: 10}, Guard{Path: noGuard.Path, Content: guard.Content}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := Build(b, []string{view + "view.json"}, limits, g)
	require.NoError(t, err)
	require.Len(t, c.Files, 3)
	pack, err := c.Draft.Pack()
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	assert.Greater(t, pack.Len(), int64(len(picture)), "a picture does not compress")
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(picture)+6<<20), "less than two copies of the picture")
}
