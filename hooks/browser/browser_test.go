package browser

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// U1 of docs/internals/threats.md: the arguments of the program, which other users of the machine can see, have no token.
func TestOpenHidesTokenFromOtherUsers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the test replaces xdg-open")
	}
	bin, temp := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\necho \"$@\" > "+bin+"/args.new && mv "+bin+"/args.new "+bin+"/args\n"), 0o700)) //nolint:gosec // a program
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", temp)
	const address = "http://127.0.0.1:8090/?token=S3CR3T&x=1"
	remove, err := Open(address)
	require.NoError(t, err)
	var args []byte
	require.Eventually(t, func() bool { args, err = os.ReadFile(filepath.Join(bin, "args")); return err == nil }, time.Minute, 10*time.Millisecond)
	assert.NotContains(t, string(args), "S3CR3T")
	file := strings.TrimSpace(string(args))
	require.True(t, strings.HasPrefix(file, temp), file)
	for path, mode := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): os.ModeDir | 0o700} {
		info, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), path)
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(content), `content="0; url=http://127.0.0.1:8090/?token=S3CR3T&amp;x=1"`)
	remove()
	assert.NoDirExists(t, filepath.Dir(file))

	t.Setenv("PATH", t.TempDir())
	_, err = Open(address)
	require.EqualError(t, err, "xdg-open is not installed")
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}
