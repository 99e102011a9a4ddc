package plot

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The plots in the documentation are those of its tables.
func TestDocumentedPlots(t *testing.T) {
	const dir = "../../../docs/internals"
	page, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	require.NoError(t, err)
	drawn := drawings(string(page))
	require.Len(t, drawn, 2, "sizes M and L")
	for name, svg := range drawn {
		t.Run(name, func(t *testing.T) {
			is, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.Equal(t, svg, string(is), "run go run ./test/bench plot docs/internals/performance.md")
			assert.NoError(t, xml.Unmarshal(is, new(struct{})))
			assert.Contains(t, string(page), "]("+name+")")
		})
	}
}
