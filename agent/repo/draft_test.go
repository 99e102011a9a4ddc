package repo

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/pieces"
	"stoker.io/stoker/test/gitserver"
)

// unpack lets git add the pack of a draft to the server's own repository. git checks every object.
func unpack(t testing.TB, s *site, d *Draft) {
	t.Helper()
	pack, err := d.Pack()
	require.NoError(t, err)
	repotest.RunGit(t, s.Dir, pack.Join(), "unpack-objects", "--strict", "-q")
}

// draftBase returns a repository with a commit, and a store that has it.
func draftBase(t *testing.T, edits ...gitserver.Edit) (s *site, store *Store, commit, root plan.ID) {
	t.Helper()
	s = newSite(t)
	s.Commit("base", edits...)
	store = openStore(t, t.TempDir())
	res, _ := pull(t, store, s.remote(), "main")
	root, err := store.RootTree(res.Commit)
	require.NoError(t, err)
	return s, store, res.Commit, root
}

// TestPackOfDraft writes objects of random bytes, which do not compress. From 16, 2048 and 1<<18 bytes on, the header of an object has one more
// byte.
func TestPackOfDraft(t *testing.T) {
	s, store, base, root := draftBase(t, gitserver.Write("top", "z"))
	random := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{0, 1, 15, 16, 2047, 2048, 1<<18 - 1, 1 << 18, 3 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			content := make([]byte, size)
			_, _ = random.Read(content) // never fails
			var b pieces.Buffer
			_, _ = b.Write(content) // never fails
			d, err := NewDraft(store, root, []Edit{{Path: "new", Content: b.Bytes}})
			require.NoError(t, err)
			who := Person{Name: "a", Mail: "a@example.com", When: time.Unix(1700000000, 0)}
			commit, err := d.MakeCommit(base, who, who, "m\n", nil)
			require.NoError(t, err)
			unpack(t, s, d)
			assert.Equal(t, string(content), string(repotest.RunGit(t, s.Dir, nil, "cat-file", "blob", commit.String()+":new")))
			for _, piece := range b.Bytes {
				assert.Nil(t, piece, "the content is released")
			}
		})
	}
}

func TestDraft(t *testing.T) {
	s := newSite(t)
	blob := s.Blob("old mode")
	odd := s.RawTree(gitserver.RawEntry{Mode: "100664", Name: "odd", ID: blob}, gitserver.RawEntry{Mode: "100664", Name: "touched", ID: blob})
	base := s.Commit("base", gitserver.Files(map[string]string{"a/b/one": "1", "a/b/two": "2", "a.txt": "x", "a0": "y", "top": "z"}),
		gitserver.Script("run.sh", "#!/bin/sh\n"), gitserver.Symlink("link", "top"), gitserver.Graft("odd", odd))
	store := openStore(t, t.TempDir())
	res, _ := pull(t, store, s.remote(), "main")
	root, err := store.RootTree(res.Commit)
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		edits []Edit
		want  map[string]string // path → mode and content; "" for a deleted path
	}{
		"change a file":           {[]Edit{{Path: "a/b/one", Content: pieces.Of([]byte("new"))}}, map[string]string{"a/b/one": "100644 new"}},
		"add a directory":         {[]Edit{{Path: "a/n/m/f", Content: pieces.Of([]byte("f"))}}, map[string]string{"a/n/m/f": "100644 f"}},
		"delete a whole folder":   {[]Edit{{Path: "a/b/one", Delete: true}, {Path: "a/b/two", Delete: true}}, map[string]string{"a/b/one": "", "a": ""}},
		"keep the executable bit": {[]Edit{{Path: "run.sh", Content: pieces.Of([]byte("x")), Exec: true}}, map[string]string{"run.sh": "100755 x"}},
		"drop the executable bit": {[]Edit{{Path: "run.sh", Content: pieces.Of([]byte("x"))}}, map[string]string{"run.sh": "100644 x"}},
		"keep an unusual mode":    {[]Edit{{Path: "odd/touched", Content: pieces.Of([]byte("t"))}}, map[string]string{"odd/touched": "100644 t", "odd/odd": "100644 old mode"}},
		"sort as git sorts":       {[]Edit{{Path: "a-", Content: pieces.Of([]byte("-"))}, {Path: "a/z", Content: pieces.Of([]byte("z"))}}, map[string]string{"a-": "100644 -", "a/z": "100644 z"}},
		"delete a missing file":   {[]Edit{{Path: "no/such", Delete: true}}, map[string]string{"no": ""}},
		"an empty file":           {[]Edit{{Path: "empty"}}, map[string]string{"empty": "100644 "}},
		"rename a file":           {[]Edit{{Path: "top", Delete: true}, {Path: "top2", Content: pieces.Of([]byte("z"))}}, map[string]string{"top": "", "top2": "100644 z"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := NewDraft(store, root, tc.edits)
			require.NoError(t, err)
			author := Person{Name: "Ada <x>\n", Mail: "ada@example.com", When: time.Unix(1700000000, 0)}
			commit, err := d.MakeCommit(res.Commit, author, Person{Name: "Stoker", Mail: "stoker@example.com", When: time.Unix(1700000001, 0)}, "Change\n\nBody\n", nil)
			require.NoError(t, err)
			unpack(t, s, d)
			s.Git("fsck", "--strict", "--no-dangling", commit.String())
			assert.Equal(t, "Ada x|ada@example.com|1700000000|Stoker|Change|"+base, s.Git("log", "-1", "--format=%an|%ae|%at|%cn|%s|%P", commit.String()))
			for path, want := range tc.want {
				listed := s.Git("ls-tree", "-z", "--format=%(objectmode) %(objectname)", commit.String(), "--", path)
				if want == "" {
					assert.Empty(t, listed, path)
					continue
				}
				mode, id, _ := strings.Cut(strings.TrimRight(listed, "\x00"), " ")
				assert.Equal(t, want, mode+" "+s.Content(commit.String(), path), "%s has the blob %s", path, id)
			}
			assert.Equal(t, s.Git("rev-parse", commit.String()+"^{tree}"), d.Root.String())
			// git prints modes in their usual form; the bytes of the tree keep them.
			assert.Equal(t, 2, strings.Count(s.Git("cat-file", "tree", commit.String()+":odd"), "100664 "))
			// Reading the draft without git gives the same tree.
			assert.Equal(t, strings.Split(strings.TrimSuffix(s.Git("ls-tree", "-r", "-t", "-z", "--format=%(objectname) %(path)", commit.String()), "\x00"), "\x00"),
				repotest.WalkTree(t, drafts{d, store}, d.Root, ""))
		})
	}
}

// drafts lets repotest.WalkTree read a Draft. Its SortKey is 0 for each object, as new objects are in no pack.
type drafts struct {
	d *Draft
	*Store
}

func (o drafts) Tree(id plan.ID) ([]plan.Entry, error) { return o.d.Objects().Tree(id) }
func (o drafts) Has(id plan.ID) bool                   { return o.d.Objects().Has(id) }
func (o drafts) SortKey(plan.ID) int64                 { return 0 }

func TestDraftRejectsPaths(t *testing.T) {
	_, store, _, root := draftBase(t, gitserver.Write("a/b", "1"), gitserver.Symlink("link", "a"))
	for path, want := range map[string]v1alpha1.Reason{
		"": v1alpha1.ReasonUnsafePath, "/a": v1alpha1.ReasonUnsafePath, "a//b": v1alpha1.ReasonUnsafePath, "../a": v1alpha1.ReasonUnsafePath,
		".git/config": v1alpha1.ReasonUnsafePath, "x/.GIT/hooks/post-checkout": v1alpha1.ReasonUnsafePath, "a\x00b": v1alpha1.ReasonUnsafePath,
		"a": v1alpha1.ReasonPathCollision, "a/b/c": v1alpha1.ReasonPathCollision, "link": v1alpha1.ReasonPathCollision, "link/x": v1alpha1.ReasonPathCollision,
		strings.Repeat("d/", 70) + "f": v1alpha1.ReasonLimitExceeded,
	} {
		t.Run(fmt.Sprintf("%.20q", path), func(t *testing.T) {
			_, err := NewDraft(store, root, []Edit{{Path: path, Content: pieces.Of([]byte("x"))}})
			assert.Equal(t, want, failure.Reason(err, ""), "%v", err)
		})
	}
}

// TestDraftRandom applies random edits as a Draft and through git, and compares the trees.
func TestDraftRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "a.b", "a-b", "ab", "b", "B", "é"}
	path := func() string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = names[r.IntN(len(names))]
		}
		return strings.Join(parts, "/") + ".f" // a file never has the name of a directory
	}
	files := map[string]string{}
	for range 40 {
		files[path()] = "base"
	}
	s, store, base, root := draftBase(t, gitserver.Files(files))
	rounds := 30
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		edits, same := map[string]Edit{}, []gitserver.Edit{}
		for range 1 + r.IntN(12) {
			p := path()
			if known := slices.Sorted(maps.Keys(files)); r.IntN(2) == 0 {
				p = known[r.IntN(len(known))]
			}
			if _, ok := edits[p]; ok {
				continue
			}
			_, there := files[p]
			if there && r.IntN(3) == 0 {
				edits[p] = Edit{Path: p, Delete: true}
				same = append(same, gitserver.Delete(p))
				continue
			}
			text := fmt.Sprint(round, p)
			edits[p] = Edit{Path: p, Content: pieces.Of([]byte(text))}
			same = append(same, gitserver.Write(p, text))
		}
		d, err := NewDraft(store, root, slices.Collect(maps.Values(edits)))
		require.NoError(t, err)
		s.Branch("try", base.String())
		s.Checkout("try")
		commit := s.Commit("the same", same...)
		s.Checkout("main")
		require.Equal(t, s.Git("rev-parse", commit+"^{tree}"), d.Root.String(), "%v", edits)
	}
}

func TestRemotePush(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{Pushes: true})
	first := g.Push("first", repotest.Views(1))
	second := g.Push("second", repotest.EditView(0, 1))
	r := g.remote()
	require.NoError(t, r.Push(t.Context(), "refs/heads/a", plan.ID{}, first, nil))
	require.NoError(t, r.Push(t.Context(), "refs/heads/a", first, second, nil))
	err := r.Push(t.Context(), "refs/heads/a", plan.ID{}, first, nil)
	repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
	assert.True(t, IsStale(err))
	refs, err := r.PushRefs(t.Context())
	require.NoError(t, err)
	found, err := refs.Resolve(parseRef(t, "a"))
	require.NoError(t, err)
	assert.Equal(t, Resolution{"refs/heads/a", second}, found)
}

func TestCommitText(t *testing.T) {
	for name, refused := range map[string][]gitserver.Feature{"without its tree": nil, "from a server without filters": {gitserver.Filter}} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			g.Server.Refuse(refused...)
			g.Push("first", repotest.Views(1))
			tip := g.Push("second\n\nName: value", repotest.EditView(0, 1))
			s := openStore(t, t.TempDir())
			text, err := s.CommitText(t.Context(), g.remote(), tip)
			require.NoError(t, err)
			assert.Equal(t, g.Git("cat-file", "commit", tip.String()), strings.TrimSpace(string(text)))
			assert.False(t, s.Has(tip), "the store has a commit without its tree")
			_, err = s.CommitText(t.Context(), g.remote(), plan.ID{1})
			require.Error(t, err)
		})
	}
}

func TestPushToDirectory(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(1))
	r := newRemote(t, parseURL(t, g.Dir), Auth{Token: repotest.Token("S3CR3T")}, RemoteOptions{})
	err := r.Push(t.Context(), "refs/heads/a", plan.ID{}, commit, nil)
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	assert.ErrorContains(t, err, "proposals need a git server")
	assert.False(t, IsStale(err))
	_, err = r.PushRefs(t.Context())
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	_, err = r.APIToken(t.Context())
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
}
