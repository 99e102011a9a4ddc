package repo_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

// artifacts is a remote of a registry, and a store.
type artifacts struct {
	t      *testing.T
	server *ociregistry.Server
	remote *repo.Remote
	store  *repo.Store
}

func newArtifacts(t *testing.T, server *ociregistry.Server, auth repo.Auth, o repo.RemoteOptions) artifacts {
	u, err := repo.ParseURL(server.Repo())
	require.NoError(t, err)
	remote, err := repo.NewRemote(u, auth, o)
	require.NoError(t, err)
	store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, remote.Close()); assert.NoError(t, store.Close()) })
	return artifacts{t, server, remote, store}
}

func (a artifacts) resolve(ref string) (repo.Resolution, error) {
	parsed, err := repo.ParseRef(ref)
	require.NoError(a.t, err)
	return a.remote.Resolve(a.t.Context(), parsed)
}

// fetch resolves and fetches a ref.
func (a artifacts) fetch(ref string) (plan.ID, repo.FetchStats) {
	a.t.Helper()
	at, err := a.resolve(ref)
	require.NoError(a.t, err)
	stats, err := a.store.Fetch(a.t.Context(), a.remote, at.Commit, at.Ref)
	require.NoError(a.t, err)
	return at.Commit, stats
}

// files returns the mode and the content of all files of a commit, by path.
func (a artifacts) files(commit plan.ID) map[string]string {
	root, err := a.store.RootTree(commit)
	require.NoError(a.t, err)
	all := map[string]string{}
	var walk func(prefix string, tree plan.ID)
	walk = func(prefix string, tree plan.ID) {
		entries, err := a.store.Tree(tree)
		require.NoError(a.t, err)
		for _, e := range entries {
			if e.Mode == plan.Directory {
				walk(prefix+e.Name+"/", e.ID)
				continue
			}
			var b bytes.Buffer
			_, err := a.store.WriteBlob(&b, e.ID)
			require.NoError(a.t, err)
			all[prefix+e.Name] = fmt.Sprint(e.Mode, " ", b.String())
		}
	}
	walk("", root)
	return all
}

// line is the content of an artifact, by path. For ociregistry.Files, a name that ends with * is that of an executable file.
var line = map[string]string{"projects/line/project.json": `{"title":"line"}`, "projects/line/a.b": "1", "projects/line/a/c": "2", "run.sh*": "#!"}

func TestRegistryCommit(t *testing.T) {
	server := ociregistry.Start(t)
	layer := ociregistry.Files(t, line)
	digest := server.Push("1.0", layer, map[string]string{
		"org.opencontainers.image.source": "https://git.example.com/plants/line", "org.opencontainers.image.revision": "main@sha1:0123\nArtifact: forged",
		"org.opencontainers.image.created": "2026-01-02T03:04:05Z",
	})
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	commit, stats := a.fetch("1.0")
	assert.Equal(t, repo.FetchFirst, stats.Kind)
	assert.Equal(t, map[string]string{"projects/line/project.json": `1 {"title":"line"}`, "projects/line/a.b": "1 1", "projects/line/a/c": "1 2", "run.sh": "2 #!"}, a.files(commit))

	t.Run("the tree is that of git", func(t *testing.T) {
		clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
		files := maps.Clone(line)
		delete(files, "run.sh*")
		clone.Commit("line", gitserver.Files(files), gitserver.Script("run.sh", "#!"))
		root, err := a.store.RootTree(commit)
		require.NoError(t, err)
		assert.Equal(t, clone.Git("rev-parse", "main^{tree}"), root.String())
	})
	t.Run("the id follows from the digest", func(t *testing.T) {
		b := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		other, _ := b.fetch(digest)
		assert.Equal(t, commit, other)
	})
	t.Run("a full name", func(t *testing.T) {
		at, err := a.resolve("refs/tags/1.0")
		require.NoError(t, err)
		assert.Equal(t, repo.Resolution{Ref: "refs/tags/1.0", Commit: commit}, at)
	})
	t.Run("Refs.Commit", func(t *testing.T) {
		all, err := a.remote.Refs(t.Context())
		require.NoError(t, err)
		id, err := all.Commit("1.0")
		require.NoError(t, err)
		assert.Equal(t, commit.String(), id)
		id, err = all.Commit("2.0")
		require.NoError(t, err)
		assert.Empty(t, id)
		server.Before = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true }
		defer func() { server.Before = nil }()
		_, err = all.Commit("1.0")
		assert.True(t, failure.Is(err, v1alpha1.ReasonGitUnreachable), err)
	})
	t.Run("a poll asks for the digest only", func(t *testing.T) {
		server.Requests()
		_, err := a.resolve("1.0")
		require.NoError(t, err)
		assert.Equal(t, []string{"HEAD /v2/plants/line/manifests/1.0"}, server.Requests())
	})
	for name, ref := range map[string]string{"no such tag": "2.0", "a branch": "refs/heads/main", "HEAD": "HEAD", "no such digest": ociregistry.Digest(nil)} {
		t.Run(name, func(t *testing.T) {
			_, err := a.resolve(ref)
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
		})
	}
}

// A tag that moves brings another commit, of which only the changed files are written.
func TestRegistryMovedTag(t *testing.T) {
	server := ociregistry.Start(t)
	old := server.Push("main", ociregistry.Files(t, line), nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	first, _ := a.fetch("main")
	changed := map[string]string{"projects/line/project.json": `{"title":"new"}`, "projects/line/a.b": "1", "projects/line/a/c": "2", "run.sh*": "#!"}
	server.Push("main", ociregistry.Files(t, changed), nil)
	second, stats := a.fetch("main")
	assert.NotEqual(t, first, second)
	assert.Equal(t, repo.FetchIncremental, stats.Kind)
	assert.Equal(t, 5, stats.Objects, "commit, three trees, one file")
	assert.Equal(t, `1 {"title":"new"}`, a.files(second)["projects/line/project.json"])

	admit := func(a artifacts, git v1alpha1.GitSpec, name string, commit plan.ID) error {
		git.Repo = server.Repo()
		_, err := a.store.Admit(t.Context(), a.remote, &git, name, commit)
		return err
	}
	main := v1alpha1.GitSpec{Ref: "main"}
	t.Run("the new commit is admitted", func(t *testing.T) { assert.NoError(t, admit(a, main, "main", second)) })
	t.Run("an agent that ran the old commit goes back to it", func(t *testing.T) {
		assert.NoError(t, admit(a, main, first.String(), first))
		assert.NoError(t, admit(a, main, "main", first))
	})
	t.Run("an agent without it needs the digest", func(t *testing.T) {
		b := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		assert.ErrorContains(t, admit(b, main, "main", first), "refs/tags/main is at "+second.Short()+" now, and this gateway never had "+first.String()+": request its digest")
		err := admit(b, main, first.String(), first)
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotAllowed), err)
		assert.ErrorContains(t, err, "ask for its digest (sha256:…)")
		assert.NoError(t, admit(b, main, old, first))
		_, err = b.store.Fetch(t.Context(), b.remote, first, old)
		require.NoError(t, err)
		assert.Equal(t, a.files(first), b.files(first))
	})
	t.Run("another tag that has the commit suffices", func(t *testing.T) {
		server.Tag("1.0", old)
		defer server.Tag("1.0", "")
		b := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		assert.NoError(t, admit(b, main, first.String(), first))
		_, err := b.store.Fetch(t.Context(), b.remote, first, "")
		assert.NoError(t, err)
		limited := v1alpha1.GitSpec{Ref: "main", AllowedRefs: []string{"main", "2.*"}}
		c := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		for _, name := range []string{first.String(), old} {
			err = admit(c, limited, name, first)
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotAllowed), err)
		}
	})
	t.Run("a digest that is gone", func(t *testing.T) {
		server.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, old) {
				http.NotFound(w, r)
			}
			return strings.HasSuffix(r.URL.Path, old)
		}
		defer func() { server.Before = nil }()
		b := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := b.resolve(old)
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
	})
	// F32: an agent imports exactly the commit that the lead published.
	t.Run("another commit under the tag", func(t *testing.T) {
		b := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := b.store.Fetch(t.Context(), b.remote, first, "refs/tags/main")
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
		assert.False(t, b.store.Has(first))
		assert.False(t, b.store.Has(second))
		assert.True(t, failure.Is(admit(b, main, "main", first), v1alpha1.ReasonRefNotAllowed))
	})
}

// F33: whatever a registry serves, the commit is not resolved, and the error says why.
func TestHostileRegistry(t *testing.T) {
	zeros := func(n int64) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		archive := tar.NewWriter(z)
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: "zeros", Size: n, Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := io.CopyN(archive, endless{}, n)
		require.NoError(t, err)
		require.NoError(t, archive.Close())
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	after := func(n int64) []byte { // nothing in the archive, and zeros after it
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := io.CopyN(z, endless{}, n)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	entries := func(list ...tar.Header) []byte {
		return ociregistry.Layer(t, list, func(h tar.Header) string { return strings.Repeat("x", int(h.Size)) })
	}
	regular := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}
	}
	good := ociregistry.Files(t, line)
	push := func(layer []byte) func(*ociregistry.Server) {
		return func(s *ociregistry.Server) { s.Push("main", layer, nil) }
	}
	manifest := func(text string) func(*ociregistry.Server) {
		return func(s *ociregistry.Server) { s.PushManifest("main", []byte(text), good) }
	}
	layered := func(media string, size int) string {
		return fmt.Sprintf(`{"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, media, ociregistry.Digest(good), size)
	}
	serve := func(part string, handler http.HandlerFunc) func(*ociregistry.Server) {
		return func(s *ociregistry.Server) {
			s.Push("main", good, nil)
			s.Before = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, part) && r.Method == http.MethodGet {
					handler(w, r)
					return true
				}
				return false
			}
		}
	}
	forever := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, endless{}) }
	for name, c := range map[string]struct {
		set    func(*ociregistry.Server)
		reason v1alpha1.Reason // "" for any
		says   string
	}{
		"another manifest": {serve("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(ociregistry.Manifest(t, []byte("x"), nil))
		}), v1alpha1.ReasonUnsupportedRepository, "another manifest"},
		"another layer": {serve("/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(ociregistry.Files(t, map[string]string{"a": "b"}))
		}), v1alpha1.ReasonUnsupportedRepository, "another layer"},
		"more after the layer":    {serve("/blobs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append(bytes.Clone(good), 0)) }), "", ""},
		"less of the layer":       {serve("/blobs/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good[:len(good)-9]) }), "", ""},
		"a layer without end":     {serve("/blobs/", forever), "", ""},
		"a manifest without end":  {serve("/manifests/", forever), v1alpha1.ReasonLimitExceeded, "the manifest"},
		"a huge manifest":         {manifest(`{"layers":[],"annotations":{"a":"` + strings.Repeat("x", 5<<20) + `"}}`), v1alpha1.ReasonLimitExceeded, "more than 4194304 bytes"},
		"no JSON":                 {manifest(`<html>`), v1alpha1.ReasonUnsupportedRepository, "not valid JSON"},
		"an index":                {manifest(`{"manifests":[{"digest":"sha256:0"}]}`), v1alpha1.ReasonUnsupportedRepository, "an index of several manifests"},
		"no layer":                {manifest(`{"layers":[]}`), v1alpha1.ReasonUnsupportedRepository, "0 layers"},
		"another media type":      {manifest(layered("application/octet-stream", len(good))), v1alpha1.ReasonUnsupportedRepository, "tar+gzip"},
		"a layer of another size": {manifest(layered(ociregistry.Flux, len(good)+1)), v1alpha1.ReasonUnsupportedRepository, "another layer"},
		"a larger layer":          {manifest(layered(ociregistry.Flux, 1<<40)), v1alpha1.ReasonLimitExceeded, "more than 67108864"},
		"an index for Docker": {manifest(`{"mediaType":"application/vnd.docker.distribution.manifest.list.v2+json","manifests":[{"digest":"sha256:0"}]}`),
			v1alpha1.ReasonUnsupportedRepository, "an index of several manifests"},
		"folders without end":    {push(entries(nested(9000, 60)...)), v1alpha1.ReasonLimitExceeded, "more than 500000 files and folders"},
		"a sparse file":          {push(sparse(t, "a", 1<<20)), v1alpha1.ReasonUnsupportedRepository, `"a" in the layer is a sparse file`},
		"an empty layer":         {push([]byte{}), v1alpha1.ReasonUnsupportedRepository, "not a tar archive with gzip"},
		"half of the gzip":       {push(good[:len(good)/2]), v1alpha1.ReasonUnsupportedRepository, "not a tar archive with gzip"},
		"half of the tar":        {push(gzipped(t, unzipped(t, good)[:1300])), v1alpha1.ReasonUnsupportedRepository, "not a tar archive with gzip"},
		"no gzip":                {push([]byte("text that is not zipped")), v1alpha1.ReasonUnsupportedRepository, "not a tar archive"},
		"no tar":                 {push(gzipped(t, strings.Repeat("no tar", 1000))), v1alpha1.ReasonUnsupportedRepository, "not a tar archive"},
		"a bomb in a file":       {push(zeros(200 << 20)), v1alpha1.ReasonLimitExceeded, "more than 67108864"},
		"a bomb after the files": {push(after(200 << 20)), v1alpha1.ReasonLimitExceeded, "unpacks to more than 67108864 bytes"},
		"a path with ..":         {push(entries(regular("a/../../etc/passwd"))), v1alpha1.ReasonUnsafePath, `".."`},
		"an absolute path":       {push(entries(regular("/etc/passwd"))), v1alpha1.ReasonUnsafePath, "absolute"},
		"a path of git":          {push(entries(regular(".git/config"))), v1alpha1.ReasonUnsafePath, "git's own folder"},
		"a hard link":            {push(entries(regular("a"), tar.Header{Name: "b", Linkname: "a", Typeflag: tar.TypeLink})), v1alpha1.ReasonUnsafePath, "neither a file"},
		"a device":               {push(entries(tar.Header{Name: "b", Typeflag: tar.TypeChar})), v1alpha1.ReasonUnsafePath, "neither a file"},
		"a file below a link":    {push(entries(tar.Header{Name: "a", Linkname: "/etc", Typeflag: tar.TypeSymlink}, regular("a/passwd"))), v1alpha1.ReasonUnsafePath, "twice"},
		"a link to a long path":  {push(entries(tar.Header{Name: "a", Linkname: strings.Repeat("x/", 4096), Typeflag: tar.TypeSymlink})), v1alpha1.ReasonLimitExceeded, "a target of"},
		"a file twice":           {push(entries(regular("a"), regular("a"))), v1alpha1.ReasonUnsafePath, "twice"},
		"a file as the root":     {push(entries(regular("."))), v1alpha1.ReasonUnsafePath, "the root of the layer is a file"},
		"a link as the root":     {push(entries(tar.Header{Name: "./", Linkname: "/etc", Typeflag: tar.TypeSymlink})), v1alpha1.ReasonUnsafePath, "or a symbolic link"},
		"a file and a folder":    {push(entries(regular("a/b"), regular("a"))), v1alpha1.ReasonUnsafePath, "twice"},
		"a redirect of a manifest": {serve("/manifests/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }),
			v1alpha1.ReasonRedirectRefused, "only for layers"},
		"redirects without end": {serve("/", func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				_, _ = w.Write(ociregistry.Manifest(t, good, nil))
				return
			}
			http.Redirect(w, r, "/again"+r.URL.Path, http.StatusFound)
		}), v1alpha1.ReasonRedirectRefused, "up to 3 times"},
		"a redirect to a file": {serve("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}),
			v1alpha1.ReasonRedirectRefused, "not https://"},
		"a redirect to the metadata of a cloud": {serve("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}), v1alpha1.ReasonUnsupportedRepository, "link-local"},
		"a redirect to the pod itself": {serve("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost:8088/data", http.StatusFound)
		}), v1alpha1.ReasonUnsupportedRepository, "loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			server := ociregistry.Start(t)
			c.set(server)
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{MaxBytes: 64 << 20})
			began := time.Now()
			at, err := a.resolve("main")
			assert.Less(t, time.Since(began), 20*time.Second)
			require.Error(t, err, at.Commit)
			if c.reason != "" {
				assert.True(t, failure.Is(err, c.reason), "%s: %v", c.reason, err)
			}
			assert.ErrorContains(t, err, c.says)
			server.CloseClientConnections()
		})
	}
}

// endless reads zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func gzipped(t *testing.T, text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, text)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func unzipped(t *testing.T, layer []byte) string {
	z, err := gzip.NewReader(bytes.NewReader(layer))
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(text)
}

// nested returns n folders, each within depth-1 folders of its own.
func nested(n, depth int) []tar.Header {
	list := make([]tar.Header, n)
	for i := range list {
		list[i] = tar.Header{Name: fmt.Sprintf("%05d", i) + strings.Repeat("/b", depth-1), Typeflag: tar.TypeDir, Mode: 0o755}
	}
	return list
}

// sparse returns a layer with a file of size bytes, of which the archive has one.
func sparse(t *testing.T, name string, size int) []byte {
	record := func(key, value string) string {
		text := " " + key + "=" + value + "\n"
		return fmt.Sprint(len(text)+2) + text // all have two digits
	}
	records := record("GNU.sparse.map", "0,1") + record("GNU.sparse.numblocks", "1") + record("GNU.sparse.size", fmt.Sprint(size))
	archive := []byte(unzipped(t, ociregistry.Layer(t, []tar.Header{
		{Name: "records", Typeflag: tar.TypeReg, Size: int64(len(records))}, {Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644},
	}, func(h tar.Header) string { return map[string]string{"records": records, name: "x"}[h.Name] })))
	const typeflag, sum = 156, 148 // in the first header
	archive[typeflag] = tar.TypeXHeader
	copy(archive[sum:], "        ")
	total := 0
	for _, b := range archive[:512] {
		total += int(b)
	}
	copy(archive[sum:], fmt.Sprintf("%06o\x00 ", total))
	return gzipped(t, string(archive))
}

// An artifact that cannot be imported is downloaded once, and one that the registry damages is downloaded again.
func TestRegistryRefusals(t *testing.T) {
	for name, push := range map[string]func(*ociregistry.Server){
		"hard link": func(s *ociregistry.Server) {
			s.Push("main", ociregistry.Layer(t, []tar.Header{{Name: "b", Linkname: "a", Typeflag: tar.TypeLink}}, nil), nil)
		},
		"no archive": func(s *ociregistry.Server) { s.Push("main", []byte("text"), nil) },
		"no layer":   func(s *ociregistry.Server) { s.PushManifest("main", []byte(`{"layers":[]}`)) },
		"large file": func(s *ociregistry.Server) {
			s.Push("main", ociregistry.Files(t, map[string]string{"a/b": strings.Repeat("x", 2000)}), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := ociregistry.Start(t)
			push(server)
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{MaxBlob: 1000})
			_, first := a.resolve("main")
			require.Error(t, first)
			server.Requests()
			_, again := a.resolve("main")
			assert.Equal(t, first, again)
			assert.Equal(t, []string{"HEAD /v2/plants/line/manifests/main"}, server.Requests())
			if name == "large file" {
				assert.True(t, failure.Is(first, v1alpha1.ReasonLimitExceeded), first)
				assert.ErrorContains(t, first, `"a/b" in the layer: `)
			}
		})
	}
	t.Run("damaged", func(t *testing.T) {
		server := ociregistry.Start(t)
		server.Push("main", ociregistry.Files(t, line), nil)
		server.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				_, _ = w.Write([]byte("no archive"))
				return true
			}
			return false
		}
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := a.resolve("main")
		assert.ErrorContains(t, err, "damaged or forged")
		server.Before = nil
		_, err = a.resolve("main")
		assert.NoError(t, err)
	})
}

// F32: a registry that serves another layer after the commit was resolved cannot change it.
func TestRegistryForgesLater(t *testing.T) {
	server := ociregistry.Start(t)
	layer := ociregistry.Files(t, line)
	server.Push("main", layer, nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	at, err := a.resolve("main")
	require.NoError(t, err)
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write(ociregistry.Files(t, map[string]string{"a": "b"}))
			return true
		}
		return false
	}
	_, err = a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
	assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), err)
	assert.False(t, a.store.Has(at.Commit))
}

// What needs git is refused with the reason.
func TestRegistryIsNoGit(t *testing.T) {
	server := ociregistry.Start(t)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	_, err := a.remote.PushRefs(t.Context())
	assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), err)
	assert.ErrorContains(t, err, "proposals need git")
	u, err := repo.ParseURL(server.Repo())
	require.NoError(t, err)
	_, err = repo.NewRemote(u, repo.Auth{Key: func() (secret.String, error) { return secret.String{}, nil }}, repo.RemoteOptions{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonAuthFailed), err)
}
