package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxBinary is a ceiling, not a goal: every gateway's node pulls and keeps the agent. Raise it only for a dependency that
// is worth it. Some 29 MiB of it are client-go: its leader election and its events bring the types of all of Kubernetes.
const maxBinary = 56 << 20

func TestTheReleaseBinaryStaysSmall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	fi, err := os.Stat(file)
	require.NoError(t, err)
	assert.LessOrEqual(t, fi.Size(), int64(maxBinary), "see which dependency came in: go version -m, go tool nm -size")
}
