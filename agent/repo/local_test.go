package repo

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

func TestDirectories(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(20), gitserver.Symlink("l", "README.md"))
	g.AnnotatedTag("v1", commit.String())
	git := func(dir string, args ...string) { repotest.RunGit(t, dir, nil, args...) }
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
	require.NoError(t, os.Symlink(path("tree"), path("via link")))

	for _, name := range []string{"tree", "tree/.git", "linked", "packed.git", "shared", "separate", "separate.git", "shallow", "via link"} {
		t.Run(name, func(t *testing.T) {
			before := listing(t, path(name))
			s := openStore(t, t.TempDir())
			for kind, address := range map[string]string{"path": path(name), "URL": "file://" + filepath.ToSlash(tmp) + "/" + escapeSpace(name)} {
				t.Run(kind, func(t *testing.T) {
					r := newRemote(t, parseURL(t, address), Auth{}, RemoteOptions{})
					res, _ := pull(t, s, r, "main")
					assert.Equal(t, Resolution{"refs/heads/main", commit}, res)
					if name != "shallow" {
						res, _ = pull(t, s, r, "v1")
						assert.Equal(t, Resolution{"refs/tags/v1", commit}, res)
					}
				})
			}
			repotest.RequireSame(t, g, s, commit)
			assert.Equal(t, before, listing(t, path(name)), "the repository is not changed")
		})
	}
}

func escapeSpace(s string) string {
	if s == "via link" {
		return "via%20link"
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

func TestUnreadableDirectories(t *testing.T) {
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
		"a missing directory is GitUnreachable":               {filepath.Join(tmp, "missing"), v1alpha1.ReasonGitUnreachable},
		"a directory without a repository is GitUnreachable":  {write("plain/file.txt", "x"), v1alpha1.ReasonGitUnreachable},
		"a .git file with a missing target is GitUnreachable": {write("nowhere/.git", "gitdir: /nonexistent/x\n"), v1alpha1.ReasonGitUnreachable},
		"a .git file with no path is UnsupportedRepository":   {write("broken/.git", "nonsense"), v1alpha1.ReasonUnsupportedRepository},
		"a .git file with a NUL is UnsupportedRepository":     {write("nul/.git", "gitdir: /a\x00b\n"), v1alpha1.ReasonUnsupportedRepository},
		"reftable is UnsupportedRepository":                   {configured("reftable.git", "extensions.refStorage"), v1alpha1.ReasonUnsupportedRepository},
		"a path through a file is GitUnreachable":             {write("plain/file.txt", "x") + "/file.txt/x", v1alpha1.ReasonGitUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemote(t, parseURL(t, tt.dir), Auth{}, RemoteOptions{})
			_, err := r.Resolve(t.Context(), parseRef(t, "main"))
			repotest.RequireReason(t, tt.want, err)
		})
	}
}

func TestDirectoryOfObjectFormatSHA256(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{}, "--object-format=sha256")
	g.Commit("first", repotest.Views(1))
	_, err := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{}).Resolve(t.Context(), parseRef(t, "main"))
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	assert.ErrorContains(t, err, "sha256")
}

// An object has other content than its id says. TestAlternates has a missing object.
func TestDamagedDirectory(t *testing.T) {
	g := newSite(t)
	// loose returns the path of a loose object.
	loose := func(id string) string { return filepath.Join(g.Dir, "objects", id[:2], id[2:]) }
	blob := func(content string) string {
		return string(repotest.RunGit(t, g.Dir, []byte(content), "hash-object", "-w", "--stdin")[:40])
	}
	good, other := blob("good\n"), blob("other\n")
	tree := string(repotest.RunGit(t, g.Dir, []byte("100644 blob "+good+"\ta.txt\n"), "mktree")[:40])
	commit := repotest.ParseID(t, g.CommitTree("first", tree))
	r := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{})
	right, err := os.ReadFile(loose(good))
	require.NoError(t, err)
	wrong, err := os.ReadFile(loose(other))
	require.NoError(t, err)
	require.NoError(t, os.Chmod(loose(good), 0o600))
	require.NoError(t, os.WriteFile(loose(good), wrong, 0o600))
	s := openStore(t, t.TempDir())
	_, err = s.Fetch(t.Context(), r, commit, "main")
	repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	assert.Empty(t, repotest.PackFiles(t, s, ""), "the store does not keep an incomplete commit")
	require.NoError(t, os.WriteFile(loose(good), right, 0o600))
	_, err = s.Fetch(t.Context(), r, commit, "main")
	require.NoError(t, err)
	assert.Equal(t, "good\n", repotest.ReadBlob(t, s, repotest.ParseID(t, good)))
}

// F11: a repository in a directory must respect the limits.
func TestDirectoryLimits(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(50))
	r := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{})
	for name, l := range map[string]Limits{
		"objects": {Objects: 20}, "all objects": {InflatedBytes: 2000}, "the pack": {PackBytes: 2000}, "a tree": {TreeBytes: 50},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStoreWith(t, t.TempDir(), StoreOptions{Limits: l})
			_, err := s.Fetch(t.Context(), r, commit, "main")
			repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
			assert.Empty(t, repotest.PackFiles(t, s, ""))
		})
	}
	many := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{MaxRefs: 1})
	g.Tag("a", g.Head())
	g.Tag("b", g.Head())
	_, err := many.Resolve(t.Context(), parseRef(t, "main"))
	repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
}

// As on a server, a tag stands for the object at the end of its chain.
func TestNestedTags(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(3))
	g.AnnotatedTag("t1", commit.String())
	for i := range 12 {
		g.AnnotatedTag(fmt.Sprintf("t%d", i+2), fmt.Sprintf("refs/tags/t%d", i+1))
	}
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprintf("packed %t", packed), func(t *testing.T) {
			if packed {
				g.Repack()
				g.Git("pack-refs", "--all")
			}
			for _, u := range []URL{parseURL(t, g.Dir), g.url()} {
				res, _ := pull(t, openStore(t, t.TempDir()), newRemote(t, u, Auth{}, RemoteOptions{}), "t13")
				assert.Equal(t, Resolution{"refs/tags/t13", commit}, res, "%s", u)
			}
		})
	}
}

// git refuses to create such a branch, but a mirror may have one. Git over HTTP follows it.
func TestBranchToTagObject(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(3))
	tag := g.AnnotatedTag("v1", commit.String())
	require.NoError(t, os.WriteFile(filepath.Join(g.Dir, "refs", "heads", "release"), []byte(tag+"\n"), 0o600))
	for _, u := range []URL{g.url(), parseURL(t, g.Dir)} {
		t.Run(u.String(), func(t *testing.T) {
			res, _ := pull(t, openStore(t, t.TempDir()), newRemote(t, u, Auth{}, RemoteOptions{}), "release")
			assert.Equal(t, Resolution{"refs/heads/release", commit}, res)
		})
	}
}

// F11: objects from a directory are verified like those from a server. A matching id is not enough if the header lies.
func TestFalseLooseObjects(t *testing.T) {
	for name, raw := range map[string]string{
		"longer than it claims":  "blob 3\x00good",
		"shorter than it claims": "blob 5\x00good",
		"another kind":           "tree 4\x00good",
		"an unknown kind":        "file 4\x00good",
		"a malformed size":       "blob +4\x00good",
		"an endless header":      "blob " + strings.Repeat("4", 100),
		"a huge size":            "blob 9223372036854775807\x00good",
	} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			id := sha1.Sum([]byte(raw))
			var packed bytes.Buffer
			w := zlib.NewWriter(&packed)
			_, err := w.Write([]byte(raw))
			require.NoError(t, err)
			require.NoError(t, w.Close())
			file := filepath.Join(g.Dir, "objects", hex.EncodeToString(id[:1]), hex.EncodeToString(id[1:]))
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, packed.Bytes(), 0o600))
			tree := g.RawTree(gitserver.RawEntry{Mode: "100644", Name: "a.txt", ID: hex.EncodeToString(id[:])})
			commit := repotest.ParseID(t, g.CommitTree("first", tree))
			s := openStore(t, t.TempDir())
			_, err = s.Fetch(t.Context(), newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{}), commit, "main")
			require.Error(t, err)
			assert.Empty(t, repotest.PackFiles(t, s, ""))
		})
	}
}

func TestAlternates(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(20))
	g.AnnotatedTag("v1", commit.String())
	tmp := filepath.Dir(g.Dir)
	borrow := func(name string, alternates ...string) string {
		dir := filepath.Join(tmp, name)
		repotest.RunGit(t, tmp, nil, "init", "-q", "--bare", dir)
		text := "# the objects\n" + strings.Join(alternates, "\n") + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "objects/info/alternates"), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "refs/heads/main"), []byte(commit.String()+"\n"), 0o600))
		return dir
	}
	for name, dir := range map[string]string{
		"absolute":    borrow("a.git", filepath.Join(g.Dir, "objects")),
		"relative":    borrow("b.git", "../../site.git/objects"),
		"chained":     borrow("c.git", "../../b.git/objects"),
		"in a cycle":  borrow("d.git", "../../d.git/objects", "../../a.git/objects"),
		"one missing": borrow("e.git", "../../gone/objects", "../../a.git/objects"),
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			pull(t, s, newRemote(t, parseURL(t, dir), Auth{}, RemoteOptions{}), "main")
			repotest.RequireSame(t, g, s, commit)
		})
	}
	t.Run("the only one missing", func(t *testing.T) {
		r := newRemote(t, parseURL(t, borrow("f.git", "../../gone/objects")), Auth{}, RemoteOptions{})
		_, err := openStore(t, t.TempDir()).Fetch(t.Context(), r, commit, "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.ErrorContains(t, err, "gone/objects")
	})
}

// An index in an unsupported version is not damage, so fetching again does not help.
func TestIndexVersionOne(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(3))
	g.Git("-c", "pack.indexVersion=1", "repack", "-a", "-d", "-q")
	r := newRemote(t, parseURL(t, g.Dir), Auth{}, RemoteOptions{})
	_, err := openStore(t, t.TempDir()).Fetch(t.Context(), r, commit, "main")
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	assert.ErrorContains(t, err, "git repack")
	g.Git("repack", "-a", "-d", "-f", "-q")
	s := openStore(t, t.TempDir())
	pull(t, s, r, "main")
	repotest.RequireSame(t, g, s, commit)
}
