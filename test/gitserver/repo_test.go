package gitserver_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gitserver"
)

func newRepo(t *testing.T) *gitserver.Repo {
	t.Helper()
	return gitserver.NewRepo(t, filepath.Join(t.TempDir(), "r.git"))
}

// tree lists a commit as "mode path" lines. Git quotes unusual names.
func tree(r *gitserver.Repo, commit string) []string {
	out := r.Git("ls-tree", "-r", "--format=%(objectmode) %(path)", commit)
	if out == "" {
		return nil
	}
	return strings.Split(out, "\n")
}

func TestCommit(t *testing.T) {
	r := newRepo(t)
	assert.Empty(t, r.Head())
	first := r.Commit("first",
		gitserver.Files(map[string]string{"a/one": "1", "a/two": "2", "a b/\"q\"\n": "odd", "caf\xe9": "latin"}),
		gitserver.Script("run.sh", "#!/bin/sh\n"),
		gitserver.Symlink("link", "/etc/passwd"),
		gitserver.Submodule("sub", strings.Repeat("1", 40)),
	)
	assert.Equal(t, []string{
		`100644 "a b/\"q\"\n"`, "100644 a/one", "100644 a/two", `100644 "caf\351"`, "120000 link", "100755 run.sh", "160000 sub",
	}, tree(r, first))
	assert.Equal(t, "/etc/passwd", r.Content(first, "link"))

	second := r.Commit("second",
		gitserver.Delete("a b"), gitserver.Delete("caf\xe9"), gitserver.Delete("sub"), gitserver.Delete("link"),
		gitserver.Rename("a", "b/c"), gitserver.Chmod("run.sh", false), gitserver.Write("b/c/one", "11"))
	assert.Equal(t, []string{"100644 b/c/one", "100644 b/c/two", "100644 run.sh"}, tree(r, second))
	assert.Equal(t, "11", r.Content(second, "b/c/one"))
	assert.Equal(t, first, r.Git("rev-parse", second+"^"))
}

func TestCommitsAreReproducible(t *testing.T) {
	build := func() string {
		r := newRepo(t)
		r.Commit("first", gitserver.Write("a", "1"))
		tag := r.AnnotatedTag("v1", r.Head())
		return r.Commit("second", gitserver.Write("a", "2")) + tag
	}
	assert.Equal(t, build(), build())
}

func TestMerge(t *testing.T) {
	r := newRepo(t)
	base := r.Commit("base", gitserver.Files(map[string]string{"keep": "0", "gone": "0", "edit": "0"}))
	r.Branch("side", base)
	r.Checkout("side")
	side := r.Commit("side", gitserver.Delete("gone"), gitserver.Write("edit", "side"), gitserver.Write("new", "side"))
	r.Checkout("main")
	main := r.Commit("main", gitserver.Write("keep", "main"))
	merged := r.Merge("merge", "side")
	assert.Equal(t, []string{"100644 edit", "100644 keep", "100644 new"}, tree(r, merged))
	assert.Equal(t, "main", r.Git("cat-file", "blob", merged+":keep"))
	assert.Equal(t, merged+" "+main+" "+side, r.Git("rev-list", "-1", "--parents", merged))
}

func TestForcePushAndOrphan(t *testing.T) {
	r := newRepo(t)
	first := r.Commit("first", gitserver.Write("a", "1"))
	r.Commit("second", gitserver.Write("a", "2"))
	r.ForcePush(first)
	assert.Equal(t, first, r.Head())
	orphan := r.Orphan("new history", gitserver.Write("b", "1"))
	assert.Equal(t, orphan, r.Git("rev-list", "main"))
	assert.Equal(t, []string{"100644 b"}, tree(r, orphan))
}

func TestRefs(t *testing.T) {
	r := newRepo(t)
	first := r.Commit("first", gitserver.Write("a", "1"))
	r.Tag("light", first)
	object := r.AnnotatedTag("heavy", first)
	r.Branch("side", first)
	require.NotEqual(t, first, object)
	assert.Equal(t, first, r.Git("rev-parse", "heavy^{commit}"))
	refs := func() string { return r.Git("for-each-ref", "--format=%(refname)") }
	assert.Equal(t, "refs/heads/main\nrefs/heads/side\nrefs/tags/heavy\nrefs/tags/light", refs())
	r.DeleteTag("light")
	r.DeleteTag("heavy")
	r.DeleteBranch("side")
	assert.Equal(t, "refs/heads/main", refs())
}

func TestRawTrees(t *testing.T) {
	r := newRepo(t)
	inner := r.RawTree(gitserver.RawEntry{Mode: "100644", Name: "config", Content: "[core]"})
	hostile := r.RawTree(
		gitserver.RawEntry{Mode: "100644", Name: "..", Content: "up"},
		gitserver.RawEntry{Mode: "40000", Name: ".git", ID: inner},
		gitserver.RawEntry{Mode: "100644", Name: "a\nb", Content: "newline"},
		gitserver.RawEntry{Mode: "100644", Name: "caf\xe9", Content: "latin"},
	)
	whole := r.CommitTree("hostile root", hostile)
	names := []string{"100644 ..", "100644 .git/config", `100644 "a\nb"`, `100644 "caf\351"`}
	assert.Equal(t, names, tree(r, whole))

	grafted := r.Commit("hostile folder", gitserver.Delete(".git"), gitserver.Graft("projects/a", hostile))
	assert.Contains(t, tree(r, grafted), "100644 projects/a/..")
	assert.Equal(t, whole, r.Git("rev-parse", grafted+"^"))
}

func TestRepack(t *testing.T) {
	r := newRepo(t)
	r.Commit("first", gitserver.Write("a", "1"))
	r.Commit("second", gitserver.Write("a", "2"))
	r.Repack()
	packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
	require.NoError(t, err)
	assert.Len(t, packs, 1)
}

func TestSHA256Repository(t *testing.T) {
	r := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "r.git"), "--object-format=sha256")
	assert.Len(t, r.Commit("first", gitserver.Write("a", "1")), 64)
}
