package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// In a pod whose containers share processes, the gateway reads no token through /proc. The agent itself still opens its files there.
func TestHiddenProcess(t *testing.T) {
	require.NoError(t, hideProcess())
	defer func() { assert.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }()
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	require.NoError(t, err)
	assert.Zero(t, dumpable)
	for _, own := range []string{"/proc/self/mountinfo", "/proc/self/fd", "/proc/self/status"} {
		f, err := os.Open(own)
		require.NoError(t, err)
		assert.NoError(t, f.Close())
	}
}
