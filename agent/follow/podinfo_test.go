package follow

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUnreadablePodInfoIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	labels := map[string]string{"line": "1"}
	p := podInfo{dir: t.TempDir(), labels: labels}
	for range 50 {
		p.reload(log)
	}
	assert.Equal(t, 1, strings.Count(out.String(), "level=WARN"), out.String())
	assert.Equal(t, labels, p.labels, "the last values stay in force")

	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "labels"), []byte("line=\"2\"\n"), 0o600))
	p.reload(log)
	assert.Equal(t, map[string]string{"line": "2"}, p.labels, "one file is missing, the other is read")
	assert.Equal(t, 2, strings.Count(out.String(), "level=WARN"), "another error: %s", out.String())
}
