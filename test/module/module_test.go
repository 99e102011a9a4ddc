package module

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRoot(t *testing.T) {
	root, err := Root()
	require.NoError(t, err)
	assert.FileExists(t, filepath.Join(root, "test", "module", "module.go"))

	t.Chdir(filepath.Join(root, "test", "cluster", "kubernetes"))
	nested, err := Root()
	require.NoError(t, err)
	assert.Equal(t, root, nested, "from a nested module")

	t.Chdir(os.TempDir())
	_, err = Root()
	assert.ErrorContains(t, err, "is not inside module "+Path)
}
