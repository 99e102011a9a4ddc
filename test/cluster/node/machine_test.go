//go:build linux

package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSavedState(t *testing.T) {
	m := Machine{File: filepath.Join(t.TempDir(), "machine.json")}
	want := saved{Settings: map[string]string{"kernel/panic": "0"}, Made: []string{"/run/netns"}}
	require.NoError(t, m.write(want))
	got, err := m.read()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	entries, err := os.ReadDir(filepath.Dir(m.File))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	for name, content := range map[string]string{"empty": "", "truncated": `{"Settings":{"kern`} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(m.File, []byte(content), 0o600))
			got, err := m.read()
			require.NoError(t, err)
			assert.Empty(t, got)
		})
	}
}
