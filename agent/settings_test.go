package main

import (
	"bytes"
	"flag"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestACommandLineThatCannotRunIsExplainedAtOnceAndWhole(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--secret", "token=x", "--max-files", "0", "--log-level", "loud", "extra"}, &out)
	require.ErrorIs(t, err, errUsage)
	for _, want := range []string{"--file is required", "--data-dir is required", "--gateway-name is required", "NAME/KEY=FILE", "--max-files", "loud", `"extra"`} {
		assert.Contains(t, out.String(), want)
	}
}

func TestHelpIsNoError(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, exitDone, run(t.Context(), []string{"--help"}, io.Discard, &out))
	assert.Contains(t, out.String(), "--data-dir")
	_, err := parse([]string{"-h"}, io.Discard)
	assert.ErrorIs(t, err, flag.ErrHelp)
	assert.Equal(t, exitUsage, run(t.Context(), []string{"--nonsense"}, io.Discard, &out))
}

func TestSizesAreReadAndPrintedInTheirUnits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "1KiB": 1 << 10, "512MiB": 512 << 20, "8GiB": 8 << 30} {
		var b bytesize
		require.NoError(t, b.Set(text))
		assert.EqualValues(t, want, b)
		assert.Equal(t, text, b.String())
	}
	for _, text := range []string{"", "-1", "1.5GiB", "GiB", "9999999999GiB", "5MB", "0x10"} {
		var b bytesize
		assert.Error(t, b.Set(text), text)
	}
}

func TestEveryDataDirectoryHasItsOwnCacheOfObjects(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	a, b := settings{DataDir: "/data/a"}, settings{DataDir: "/data/b"}
	dirA, err := a.repoDir()
	require.NoError(t, err)
	dirB, err := b.repoDir()
	require.NoError(t, err)
	assert.NotEqual(t, dirA, dirB)
	given := settings{RepoDir: "/elsewhere"}
	dir, err := given.repoDir()
	require.NoError(t, err)
	assert.Equal(t, "/elsewhere", dir)
}
