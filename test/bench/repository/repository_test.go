package repository

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
)

var tiny = Size{Name: "T", Files: 60, Mean: 2_000, Past: 200}

func generated(t *testing.T) string {
	t.Helper()
	dir, err := Generate(t.Context(), t.TempDir(), tiny)
	require.NoError(t, err)
	return dir
}

func gitLines(t *testing.T, dir string, args ...string) []string {
	t.Helper()
	out, err := GitOutput(t.Context(), dir, nil, args...)
	require.NoError(t, err)
	return strings.Split(out, "\n")
}

func TestGenerateIsReproducible(t *testing.T) {
	refs := func(dir string) []string { return gitLines(t, dir, "for-each-ref") }
	assert.Equal(t, refs(generated(t)), refs(generated(t)))
}

func TestRepositoryCache(t *testing.T) {
	cache := t.TempDir()
	first, err := Generate(t.Context(), cache, tiny)
	require.NoError(t, err)
	mark := filepath.Join(first, "mark")
	require.NoError(t, os.WriteFile(mark, nil, 0o644))
	second, err := Generate(t.Context(), cache, tiny)
	require.NoError(t, err)
	assert.Equal(t, first, second)
	assert.FileExists(t, mark)
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	assert.Len(t, left, 1, "no partial repository may stay")
}

func TestRepositoryShape(t *testing.T) {
	dir := generated(t)
	files := gitLines(t, dir, "ls-tree", "-r", "--name-only", Base, Mapped)
	assert.Len(t, files, tiny.Files)
	changed := func(commit string) int {
		return len(gitLines(t, dir, "diff-tree", "-r", "--name-only", "--no-commit-id", commit+"^", commit))
	}
	assert.Equal(t, 1, changed("refs/bench/one/1"))
	assert.Equal(t, 1, changed("refs/bench/merge/9"))
	assert.Equal(t, 1, changed("refs/bench/late/9"))
	assert.Greater(t, changed("refs/bench/hundred/1"), 20)
	side := gitLines(t, dir, "rev-list", "-1", "--parents", "refs/bench/merge/1")
	assert.Len(t, strings.Fields(side[0]), 3, "the commit must be a merge")
	assert.Equal(t, gitLines(t, dir, "rev-parse", "refs/bench/root"), gitLines(t, dir, "merge-base", "refs/bench/merge/1^1", "refs/bench/merge/1^2"))
	assert.Equal(t, gitLines(t, dir, "rev-parse", Base), gitLines(t, dir, "rev-parse", "refs/bench/one/1^"))
}

func TestGeneratedJSONIsValid(t *testing.T) {
	w := NewWriter(1, 3000)
	for _, p := range Layout(500) {
		before := w.last
		content := w.Content(p)
		if strings.HasSuffix(p.Name, ".json") {
			require.True(t, json.Valid([]byte(content)), "%s\n%s", p.Name, content)
		}
		if strings.HasSuffix(p.Name, "resource.json") {
			var meta struct {
				Files      []string
				Attributes map[string]any
			}
			require.NoError(t, json.Unmarshal([]byte(content), &meta))
			assert.NotNil(t, meta.Attributes)
			assert.NotEmpty(t, meta.Files)
			if p.Kind == ResourceFile {
				signed, err := resource.ParseSigned([]byte(content))
				require.NoError(t, err)
				sum, err := signed.Signature(resource.Form83, func(to io.Writer, _ string) error { _, err := io.WriteString(to, before); return err })
				require.NoError(t, err)
				assert.Equal(t, sum, signed.Stored(), "the signature must be valid")
			}
		}
	}
}
