package repo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

func TestEveryKindOfDirectoryIsRead(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(20), gitserver.Symlink("l", "README.md"))
	g.AnnotatedTag("v1", commit.String())
	git := func(dir string, args ...string) { runGit(t, dir, nil, args...) }
	tmp := t.TempDir()
	path := func(name string) string { return filepath.Join(tmp, name) }

	git(tmp, "clone", "-q", g.Dir, "tree")
	git(path("tree"), "worktree", "add", "-q", path("linked"), "v1")
	git(tmp, "clone", "-q", "--bare", g.Dir, "packed.git")
	git(path("packed.git"), "repack", "-a", "-d", "-q")
	git(path("packed.git"), "pack-refs", "--all")
	git(tmp, "clone", "-q", "--shared", g.Dir, "shared")
	git(tmp, "clone", "-q", "--separate-git-dir", path("separate.git"), g.Dir, "separate")
	git(tmp, "clone", "-q", "--depth=1", "--no-tags", "file://"+g.Dir, "shallow")
	require.NoError(t, os.Symlink(path("tree"), path("by link")))

	for _, name := range []string{"tree", "tree/.git", "linked", "packed.git", "shared", "separate", "separate.git", "shallow", "by link"} {
		t.Run(name, func(t *testing.T) {
			before := listing(t, path(name))
			s := openStore(t, t.TempDir())
			for _, address := range []string{path(name), "file://" + filepath.ToSlash(tmp) + "/" + escapeSpace(name)} {
				r := newRemote(t, parseURL(t, address), Auth{}, RemoteOptions{})
				res, _ := pull(t, s, r, "main")
				assert.Equal(t, Resolution{"refs/heads/main", commit}, res)
				if name != "shallow" {
					res, _ = pull(t, s, r, "v1")
					assert.Equal(t, Resolution{"refs/tags/v1", commit}, res)
				}
			}
			requireSame(t, g, s, commit)
			assert.Equal(t, before, listing(t, path(name)), "nothing is written to it")
		})
	}
}

func escapeSpace(s string) string {
	if s == "by link" {
		return "by%20link"
	}
	return s
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		names = append(names, path+info.ModTime().String())
		return err
	}))
	return names
}

func TestDirectoriesThatCannotBeRead(t *testing.T) {
	tmp := t.TempDir()
	write := func(name, text string) string {
		full := filepath.Join(tmp, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(text), 0o600))
		return filepath.Dir(full)
	}
	configured := func(name, config string) string {
		g := gitserver.NewRepo(t, filepath.Join(tmp, name))
		g.Commit("first", gitserver.Write("a", "a"))
		g.Git("config", "core.repositoryformatversion", "1")
		g.Git("config", config, "reftable")
		return g.Dir
	}
	for name, tt := range map[string]struct {
		dir  string
		want v1alpha1.Reason
	}{
		"no directory is GitUnreachable":                    {filepath.Join(tmp, "missing"), v1alpha1.ReasonGitUnreachable},
		"no repository is GitUnreachable":                   {write("plain/file.txt", "x"), v1alpha1.ReasonGitUnreachable},
		"a .git file to nowhere is GitUnreachable":          {write("nowhere/.git", "gitdir: /nonexistent/x\n"), v1alpha1.ReasonGitUnreachable},
		"a .git file with no path is UnsupportedRepository": {write("broken/.git", "nonsense"), v1alpha1.ReasonUnsupportedRepository},
		"a .git file with a NUL is UnsupportedRepository":   {write("nul/.git", "gitdir: /a\x00b\n"), v1alpha1.ReasonUnsupportedRepository},
		"refs as a table is UnsupportedRepository":          {configured("reftable.git", "extensions.refStorage"), v1alpha1.ReasonUnsupportedRepository},
		"a path through a file is GitUnreachable":           {write("plain/file.txt", "x") + "/file.txt/x", v1alpha1.ReasonGitUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemote(t, parseURL(t, tt.dir), Auth{}, RemoteOptions{})
			_, err := r.Resolve(t.Context(), parseRef(t, "main"))
			requireReason(t, tt.want, err)
		})
	}
}

func TestADamagedDirectoryIsNamed(t *testing.T) {
	g := newSite(t)
	// plant writes a loose object under the name of another one, or removes it.
	loose := func(id string) string { return filepath.Join(g.Dir, "objects", id[:2], id[2:]) }
	blob := func(content string) string {
		return string(runGit(t, g.Dir, []byte(content), "hash-object", "-w", "--stdin")[:40])
	}
	good, other := blob("good\n"), blob("other\n")
	tree := string(runGit(t, g.Dir, []byte("100644 blob "+good+"\ta.txt\n"), "mktree")[:40])
	commit := parseID(t, g.CommitTree("first", tree))
	r := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{})

	t.Run("an object with the content of another one is refused", func(t *testing.T) {
		right, err := os.ReadFile(loose(good))
		require.NoError(t, err)
		wrong, err := os.ReadFile(loose(other))
		require.NoError(t, err)
		require.NoError(t, os.Chmod(loose(good), 0o600))
		require.NoError(t, os.WriteFile(loose(good), wrong, 0o600))
		s := openStore(t, t.TempDir())
		_, err = s.Fetch(t.Context(), r, commit, "main")
		requireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.Empty(t, packFiles(t, s, ""), "half a commit is not kept")
		require.NoError(t, os.WriteFile(loose(good), right, 0o600))
		_, err = s.Fetch(t.Context(), r, commit, "main")
		require.NoError(t, err)
		assert.Equal(t, "good\n", readBlob(t, s, parseID(t, good)))
	})
	t.Run("an object that is missing is refused", func(t *testing.T) {
		require.NoError(t, os.Remove(loose(good)))
		s := openStore(t, t.TempDir())
		_, err := s.Fetch(t.Context(), r, commit, "main")
		requireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.Empty(t, packFiles(t, s, ""))
	})
}

// F11
func TestADirectoryIsHeldToTheLimits(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(50))
	r := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{})
	for name, l := range map[string]Limits{
		"objects": {Objects: 20}, "one object": {ObjectBytes: 100}, "all objects": {InflatedBytes: 2000}, "the pack": {PackBytes: 2000}, "a tree": {TreeBytes: 50},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStoreWith(t, t.TempDir(), StoreOptions{Limits: l})
			_, err := s.Fetch(t.Context(), r, commit, "main")
			requireReason(t, v1alpha1.ReasonLimitExceeded, err)
			assert.Empty(t, packFiles(t, s, ""))
		})
	}
	many := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{MaxRefs: 1})
	g.Tag("a", g.Head())
	g.Tag("b", g.Head())
	_, err := many.Resolve(t.Context(), parseRef(t, "main"))
	requireReason(t, v1alpha1.ReasonLimitExceeded, err)
}
