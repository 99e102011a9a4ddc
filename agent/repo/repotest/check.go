package repotest

import (
	"bytes"
	"crypto/sha1"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Objects is a store of objects in a bare repository.
type Objects interface {
	plan.Objects
	Dir() string
	RootTree(commit plan.ID) (plan.ID, error)
	SortKey(id plan.ID) int64
}

// Git runs git in a repository.
type Git interface {
	Git(args ...string) string
}

// RequireSame compares every object of a commit with the same object in g, and lets git verify the packs.
func RequireSame(t testing.TB, g Git, s Objects, commit plan.ID) {
	t.Helper()
	root, err := s.RootTree(commit)
	require.NoError(t, err)
	require.Equal(t, g.Git("rev-parse", commit.String()+"^{tree}"), root.String())
	got := WalkTree(t, s, root, "")
	want := g.Git("ls-tree", "-r", "-t", "-z", "--format=%(objectname) %(path)", commit.String())
	require.Equal(t, strings.Split(strings.TrimSuffix(want, "\x00"), "\x00"), got)
	requireContent(t, s, got)
	RequireVerified(t, s)
}

// WalkTree returns "id path" of everything below a tree, in the order of git ls-tree -r -t.
func WalkTree(t testing.TB, s Objects, id plan.ID, prefix string) []string {
	t.Helper()
	entries, err := s.Tree(id)
	require.NoError(t, err)
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.ID.String()+" "+prefix+e.Name)
		switch e.Mode {
		case plan.Directory:
			lines = append(lines, WalkTree(t, s, e.ID, prefix+e.Name+"/")...)
		case plan.Submodule:
		default:
			require.GreaterOrEqual(t, s.SortKey(e.ID), int64(0))
		}
	}
	return lines
}

// requireContent compares what WriteBlob writes with what git reads from the store.
func requireContent(t testing.TB, s Objects, lines []string) {
	t.Helper()
	var in bytes.Buffer
	for _, l := range lines {
		in.WriteString(l[:40] + "\n")
	}
	out := RunGit(t, s.Dir(), in.Bytes(), "cat-file", "--batch")
	for _, l := range lines {
		head, rest, _ := bytes.Cut(out, []byte("\n"))
		if bytes.HasSuffix(head, []byte(" missing")) { // the commit of a submodule
			out = rest
			continue
		}
		var name, kind string
		var size int
		_, err := fmt.Sscanf(string(head), "%s %s %d", &name, &kind, &size)
		require.NoError(t, err, "%s", head)
		if kind == "blob" {
			var b bytes.Buffer
			n, err := s.WriteBlob(&b, ParseID(t, l[:40]))
			require.NoError(t, err)
			require.Equal(t, int64(size), n)
			require.True(t, bytes.Equal(rest[:size], b.Bytes()), "blob %s", name)
		}
		out = rest[size+1:]
	}
}

// RequireVerified lets git check every pack and index of the store.
func RequireVerified(t testing.TB, s Objects) {
	t.Helper()
	packs := slices.DeleteFunc(PackFiles(t, s, ".idx"), func(p string) bool { return !strings.HasPrefix(filepath.Base(p), "pack-") })
	require.NotEmpty(t, packs)
	RunGit(t, s.Dir(), nil, append([]string{"verify-pack"}, packs...)...)
}

// PackFiles returns the files of the pack directory with an extension.
func PackFiles(t testing.TB, s interface{ Dir() string }, ext string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir(), "objects/pack", "*"+ext))
	require.NoError(t, err)
	return files
}

// ReadBlob returns the content of a blob.
func ReadBlob(t testing.TB, s plan.Objects, id plan.ID) string {
	t.Helper()
	var b bytes.Buffer
	_, err := s.WriteBlob(&b, id)
	require.NoError(t, err)
	return b.String()
}

// BlobID returns the id of a blob.
func BlobID(content string) plan.ID {
	return sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content))
}

// ParseID reads an id.
func ParseID(t testing.TB, s string) plan.ID {
	t.Helper()
	id, err := plan.ParseID(s)
	require.NoError(t, err)
	return id
}

// RequireReason checks the reason of an error, and that its text has no secret.
func RequireReason(t testing.TB, want v1alpha1.Reason, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, failure.Reason(err, "none"), "%v", err)
	for e := err; e != nil; e = errors.Unwrap(e) {
		require.NotContains(t, e.Error(), "S3CR3T")
		require.NotContains(t, fmt.Sprintf("%+v", e), "S3CR3T")
	}
}
