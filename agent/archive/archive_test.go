package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/heap"
)

// site is the data directory of a gateway whose syncs take snapshots.
type site struct {
	t    testing.TB
	root string
	dir  *disk.Dir
	now  time.Time
	keep int
}

func newSite(t testing.TB) *site {
	s := &site{t: t, root: t.TempDir(), now: time.Date(2026, 11, 20, 6, 30, 0, 0, time.UTC), keep: 5}
	var err error
	s.dir, err = disk.Open(s.root, disk.Options{AllowUnseeded: true, Now: func() time.Time { return s.now }})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.dir.Close()) })
	return s
}

func blobID(text string) plan.ID { return sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text)) }

// sync makes the agent own exactly the files of want. A path that ends with * stands for an executable file. As in a real sync, the edit
// of a user stays if git did not change the file.
func (s *site) sync(want map[string]string) {
	s.t.Helper()
	s.now = s.now.Add(time.Minute)
	c := &plan.Changes{To: blobID(fmt.Sprint(want)), Mappings: []plan.Origin{{Source: ".", Destination: "."}}}
	texts := map[string]string{}
	for key, text := range want {
		path, isExec := strings.CutSuffix(key, "*")
		texts[path] = text
		st, err := s.dir.Stat(path)
		require.NoError(s.t, err)
		is, owned, err := s.dir.Manifest().Get(path)
		require.NoError(s.t, err)
		ch := plan.Change{Path: path, Op: plan.Create, Found: st, ID: blobID(text), Exec: isExec, Owned: owned}
		if st.Kind == plan.File {
			ch.Op = plan.Update
			ch.FoundID, err = s.dir.BlobID(path)
			require.NoError(s.t, err)
			ch.Conflict = !owned || ch.FoundID != is.Have
			if owned && is.Want == ch.ID { // git did not change the file
				continue
			}
		}
		c.List = append(c.List, ch)
	}
	for is, err := range s.dir.Manifest().All("") {
		require.NoError(s.t, err)
		if _, ok := texts[is.Path]; !ok {
			st, err := s.dir.Stat(is.Path)
			require.NoError(s.t, err)
			id, err := s.dir.BlobID(is.Path)
			require.NoError(s.t, err)
			c.List = append(c.List, plan.Change{Path: is.Path, Op: plan.Delete, Found: st, FoundID: id, Owned: true, Conflict: id != is.Have})
		}
	}
	slices.SortFunc(c.List, func(a, b plan.Change) int { return strings.Compare(a.Path, b.Path) })
	s.apply(c, plan.Header{Ref: "main", Commit: c.To, Rules: "r", Mappings: c.Mappings, Complete: true}, func(w io.Writer, c plan.Change) error {
		_, err := io.WriteString(w, texts[c.Path])
		return err
	})
}

// apply applies changes and takes a snapshot of what they replace.
func (s *site) apply(c *plan.Changes, h plan.Header, source disk.Source) {
	s.t.Helper()
	staged, err := s.dir.Stage(s.t.Context(), c, nil, source)
	require.NoError(s.t, err)
	require.NoError(s.t, staged.Snapshot(disk.Snapshots{Gateway: "area-4", Keep: s.keep, MaxBytes: 1 << 30}))
	_, err = staged.Apply(s.t.Context(), h)
	require.NoError(s.t, err)
}

// write changes a file as a user of the gateway does.
func (s *site) write(path, text string) {
	s.t.Helper()
	require.NoError(s.t, os.MkdirAll(filepath.Dir(filepath.Join(s.root, path)), 0o755))
	require.NoError(s.t, os.WriteFile(filepath.Join(s.root, path), []byte(text), 0o644))
}

// files returns the content of all files outside .stoker. Names of executable files end with *.
func (s *site) files() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	for f, err := range s.dir.Walk("") {
		require.NoError(s.t, err)
		b, err := os.ReadFile(filepath.Join(s.root, f.Path))
		require.NoError(s.t, err)
		st, err := s.dir.Stat(f.Path)
		require.NoError(s.t, err)
		name := f.Path
		if st.Exec {
			name += "*"
		}
		found[name] = string(b)
	}
	return found
}

func (s *site) snapshots() []string {
	s.t.Helper()
	list, err := s.dir.ListSnapshots()
	require.NoError(s.t, err)
	var ids []string
	for _, x := range list {
		ids = append(ids, x.ID)
	}
	return ids
}

// pack returns the bytes of an archive of the snapshot.
func (s *site) pack(id string) []byte {
	s.t.Helper()
	c, err := s.dir.Contents(id, nil)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, c.Close()) }()
	var b bytes.Buffer
	require.NoError(s.t, archive.Write(s.t.Context(), &b, c))
	return b.Bytes()
}

func open(t testing.TB, b []byte, l archive.Limits) (*archive.Archive, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	_, err = f.Write(b)
	require.NoError(t, err)
	return archive.Open(t.Context(), f, l)
}

// restore brings the data directory back to an archive.
func (s *site) restore(b []byte) {
	s.t.Helper()
	a, err := open(s.t, b, archive.Limits{})
	require.NoError(s.t, err)
	c, err := s.dir.PlanReplace(s.t.Context(), a.Header, a.Files)
	require.NoError(s.t, err)
	s.apply(c, a.Header, a.Source)
}

var (
	first  = map[string]string{"projects/p/project.json": "{}", "projects/p/a": "a1", "projects/p/b": "b1", "projects/p/run.sh*": "#!", "projects/ü/x": "x1"}
	second = map[string]string{"projects/p/project.json": "{}", "projects/p/a": "a2", "projects/p/c": "c2", "projects/p/run.sh*": "#!", "projects/ü/x": "x1"}
	third  = map[string]string{"projects/p/project.json": "{ }", "projects/p/a": "a3", "projects/p/c": "c2"}
)

func TestArchive(t *testing.T) {
	threeSyncs := func(t *testing.T) *site {
		s := newSite(t)
		s.sync(first)
		s.sync(second)
		s.sync(third)
		require.Len(t, s.snapshots(), 2)
		return s
	}
	t.Run("tar unpacks it", func(t *testing.T) {
		if _, err := exec.LookPath("tar"); err != nil {
			t.Skip("no tar on this machine")
		}
		s, dir := threeSyncs(t), t.TempDir()
		tar := exec.Command("tar", "-xzf", "-", "-C", dir)
		tar.Stdin = bytes.NewReader(s.pack(s.snapshots()[0]))
		out, err := tar.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Empty(t, string(out))
		b, err := os.ReadFile(filepath.Join(dir, "files/projects/ü/x"))
		require.NoError(t, err)
		assert.Equal(t, "x1", string(b))
		fi, err := os.Stat(filepath.Join(dir, "files/projects/p/run.sh"))
		require.NoError(t, err)
		assert.NotZero(t, fi.Mode()&0o100)
	})
	t.Run("restore on an empty volume", func(t *testing.T) {
		s := threeSyncs(t)
		for i, want := range []map[string]string{first, second} {
			packed := s.pack(s.snapshots()[i])
			t.Run(fmt.Sprintf("snapshot %d", i+1), func(t *testing.T) {
				fresh := newSite(t)
				fresh.restore(packed)
				assert.Equal(t, want, fresh.files())
				assert.Equal(t, len(want), fresh.dir.Manifest().Header().Files)
				assert.Equal(t, blobID(fmt.Sprint(want)), fresh.dir.Manifest().Header().Commit)
				d, err := fresh.dir.Drift(t.Context(), true)
				require.NoError(t, err)
				assert.Zero(t, d.Files)
			})
		}
	})
	t.Run("restore after later syncs keeps the files of users", func(t *testing.T) {
		s := threeSyncs(t)
		b := s.pack(s.snapshots()[0])
		s.write("projects/p/own", "a user's")
		s.write("projects/p/c", "edited")
		s.restore(b)
		want := maps.Clone(first)
		want["projects/p/own"] = "a user's"
		assert.Equal(t, want, s.files())
		lost, err := s.dir.LostAndFound()
		require.NoError(t, err)
		require.Len(t, lost, 1)
		assert.Equal(t, "projects/p/c", lost[0].Path)
		s.restore(b)
		assert.Equal(t, want, s.files(), "a second restore changes nothing")
	})
	t.Run("edits of users from before the sync are archived", func(t *testing.T) {
		s := newSite(t)
		s.sync(first)
		s.write("projects/p/a", "edited and replaced")
		s.write("projects/p/b", "edited and deleted")
		s.write("projects/ü/x", "edited and not touched since")
		require.NoError(t, os.Remove(filepath.Join(s.root, "projects/p/run.sh")))
		s.sync(map[string]string{"projects/p/project.json": "{}", "projects/p/a": "a2", "projects/ü/x": "x1", "projects/p/run.sh*": "#!"})
		fresh := newSite(t)
		b := s.pack(s.snapshots()[0])
		fresh.restore(b)
		assert.Equal(t, map[string]string{"projects/p/project.json": "{}", "projects/p/a": "edited and replaced", "projects/p/b": "edited and deleted",
			"projects/ü/x": "edited and not touched since"}, fresh.files())
		assert.Equal(t, 1, fresh.dir.Manifest().Header().Files, "the restore does not make the agent own edited files")
	})
	t.Run("a sync changes the files while they are archived", func(t *testing.T) {
		s := threeSyncs(t)
		c, err := s.dir.Contents(s.snapshots()[0], nil)
		require.NoError(t, err)
		defer func() { assert.NoError(t, c.Close()) }()
		n := 0
		err = c.Each(t.Context(), func(_ disk.Content, _ int64, write func(io.Writer) error) error {
			if n++; n == 2 {
				s.sync(second)
			}
			return write(io.Discard)
		})
		require.ErrorIs(t, err, disk.ErrChanged)
	})
}

// entry is a tar entry of a forged archive.
type entry struct {
	name, text string
	kind       byte  // 0 means a regular file
	size       int64 // the size in the header; 0 means the length of text
}

// Values for the parameter records of forge.
const (
	matching  = ""     // a correct files.jsonl
	noRecords = "none" // no files.jsonl
)

// forge returns an archive with snapshot.json, these entries, and records as files.jsonl. If an entry claims a size, the archive ends
// within that entry.
func forge(t *testing.T, entries []entry, records string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	w := tar.NewWriter(zip)
	put := func(e entry) {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: max(e.size, int64(len(e.text))), Mode: 0o644, Format: tar.FormatPAX}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag != tar.TypeReg {
			h.Size, h.Linkname = 0, e.text
		}
		require.NoError(t, w.WriteHeader(h))
		if h.Size > 0 {
			_, err := w.Write([]byte(e.text))
			require.NoError(t, err)
		}
	}
	head, err := json.Marshal(map[string]any{"format": 1, "id": "area-4-20261120-063100", "commit": strings.Repeat("1", 40), "to": strings.Repeat("2", 40)})
	require.NoError(t, err)
	if len(entries) == 0 || entries[0].name != "snapshot.json" {
		put(entry{name: "snapshot.json", text: string(head)})
	}
	lines := records
	for _, e := range entries {
		put(e)
		if path, ok := strings.CutPrefix(e.name, "files/"); ok && records == matching {
			lines += fmt.Sprintf(`{"path":%q,"id":"%s"}`+"\n", path, blobID(e.text))
		}
	}
	if records != noRecords && !slices.ContainsFunc(entries, func(e entry) bool { return e.size > 0 }) {
		put(entry{name: "files.jsonl", text: lines})
	}
	_ = w.Close() // an entry may be shorter than it claims
	require.NoError(t, zip.Close())
	return b.Bytes()
}

// F22 of docs/internals/threats.md: a user who can write to the bucket may have made the archive. No forged archive changes a file, and each error
// says that.
func TestHostileArchive(t *testing.T) {
	one := []entry{{name: "files/projects/p/a", text: "a"}}
	line := fmt.Sprintf(`{"path":"projects/p/a","id":"%s"}`, blobID("a"))
	cases := map[string]struct {
		b    []byte
		want string
	}{
		"a path outside the data directory": {forge(t, []entry{{name: "files/../x", text: "a"}}, matching), ".."},
		"a path with dots in the middle":    {forge(t, []entry{{name: "files/projects/../../x", text: "a"}}, matching), ".."},
		"an absolute path":                  {forge(t, []entry{{name: "files//etc/passwd", text: "a"}}, matching), "absolute"},
		"a backslash":                       {forge(t, []entry{{name: `files/..\x`, text: "a"}}, matching), "backslash"},
		"a path in .stoker":                 {forge(t, []entry{{name: "files/.stoker/manifest", text: "a"}}, matching), "clean path"},
		"a path that agents never write": {forge(t, []entry{{name: "files/db/config.idb", text: "a"}}, matching),
			"never writes"},
		"an entry of another name":   {forge(t, []entry{{name: "../x", text: "a"}}, matching), "not part of a snapshot"},
		"a symbolic link":            {forge(t, []entry{{name: "files/projects/p/a", text: "/etc/passwd", kind: tar.TypeSymlink}}, matching), "is not a file"},
		"a hard link":                {forge(t, []entry{{name: "files/projects/p/a", text: "/etc/passwd", kind: tar.TypeLink}}, matching), "is not a file"},
		"a device":                   {forge(t, []entry{{name: "files/projects/p/a", kind: tar.TypeChar}}, matching), "is not a file"},
		"a path twice":               {forge(t, []entry{one[0], one[0]}, matching), "is not in its place"},
		"paths that are not sorted":  {forge(t, []entry{{name: "files/projects/p/b", text: "b"}, one[0]}, matching), "is not in its place"},
		"a file below a file":        {forge(t, []entry{one[0], {name: "files/projects/p/a/b", text: "b"}}, matching), "is a file and a directory"},
		"bytes of another blob id":   {forge(t, one, fmt.Sprintf(`{"path":"projects/p/a","id":"%s"}`, blobID("b"))), "is damaged"},
		"a record of another path":   {forge(t, one, fmt.Sprintf(`{"path":"projects/p/b","id":"%s"}`, blobID("a"))), "is damaged"},
		"more records than files":    {forge(t, one, line+"\n"+line), "more lines"},
		"an empty record":            {forge(t, one, "\n"), "files.jsonl"},
		"no files.jsonl":             {forge(t, one, noRecords), "truncated"},
		"an unknown mapping":         {forge(t, one, strings.Replace(line, "}", fmt.Sprintf(`,"want":"%s","origin":7}`, blobID("a")), 1)), "unknown mapping"},
		"another format":             {forge(t, []entry{{name: "snapshot.json", text: `{"format":2}`}}, matching), "update the agent"},
		"an invalid snapshot.json":   {forge(t, []entry{{name: "snapshot.json", text: "{"}}, matching), "snapshot.json"},
		"a large file":               {forge(t, []entry{{name: "files/projects/p/a", text: "a", size: 2 << 20}}, matching), "--max-blob"},
		"too many files":             {forge(t, []entry{one[0], {name: "files/projects/p/b"}, {name: "files/projects/p/c"}, {name: "files/projects/p/d"}}, matching), "--max-files"},
		"a file that ends early":     {forge(t, []entry{{name: "files/projects/p/a", text: "a", size: 1 << 10}}, matching), "unexpected EOF"},
		"not an archive":             {[]byte("<Error>AccessDenied</Error>"), "gzip"},
		"an empty object":            {nil, "EOF"},
		"an entry after files.jsonl": {forge(t, []entry{{name: "files.jsonl"}, {name: "x"}}, noRecords), "continues after"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("projects/p/a", "live")
			a, err := open(t, c.b, archive.Limits{Files: 3, FileBytes: 1 << 20})
			if err == nil {
				_, err = s.dir.PlanReplace(t.Context(), a.Header, a.Files)
			}
			require.ErrorContains(t, err, c.want)
			assert.Contains(t, err.Error(), "nothing was changed")
			r := failure.Reason(err, "")
			assert.True(t, r == v1alpha1.ReasonSnapshotFailed || r == v1alpha1.ReasonUnsafePath, "%s", r)
			assert.Equal(t, map[string]string{"projects/p/a": "live"}, s.files())
		})
	}
	t.Run("memory", func(t *testing.T) {
		if testing.Short() {
			t.Skip("decodes gigabytes")
		}
		var files []entry
		for i := range 16_000 { // setup
			files = append(files, entry{name: fmt.Sprintf("files/projects/p/%05d", i)})
		}
		long := func(i int) entry {
			return entry{name: "files/projects/" + strings.Repeat(fmt.Sprintf("%03d/", i), 200<<10) + "x"}
		}
		var longer []entry
		for i := range 250 { // setup: their paths have 195 MiB
			longer = append(longer, long(i))
		}
		for name, b := range map[string][]byte{
			"one large record":       forge(t, files, strings.Repeat(" ", 128<<20)),
			"a record of many items": forge(t, files, `{"path":[`+strings.Repeat("{},", 128<<20/3)),
			"long paths":             forge(t, longer, noRecords),
		} {
			t.Run(name, func(t *testing.T) {
				var err error
				peak := heap.Peak(t, func() { _, err = open(t, b, archive.Limits{}) })
				require.Error(t, err)
				assert.Less(t, len(err.Error()), 400)
				assert.Less(t, peak, 150, "MiB")
			})
		}
		_, err := open(t, forge(t, []entry{long(1)}, matching), archive.Limits{PathBytes: 1024})
		require.ErrorContains(t, err, "has a path of 819210 bytes, more than 1024")
	})
	t.Run("truncated at each byte", func(t *testing.T) {
		s := newSite(t)
		s.sync(first)
		s.sync(second)
		b := s.pack(s.snapshots()[0])
		for n := range b {
			_, err := open(t, b[:n], archive.Limits{})
			require.Error(t, err, "%d of %d bytes", n, len(b))
		}
	})
	t.Run("a decompression bomb", func(t *testing.T) {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		w := tar.NewWriter(zip)
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "snapshot.json", Size: 12, Mode: 0o644}))
		_, err := w.Write([]byte(`{"format":1}`))
		require.NoError(t, err)
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "files/a", Size: 65 << 30, Mode: 0o644}))
		require.NoError(t, zip.Close())
		_, err = open(t, b.Bytes(), archive.Limits{})
		require.ErrorContains(t, err, "have more than")
	})
}

func FuzzArchive(f *testing.F) {
	s := newSite(f)
	s.sync(first)
	s.sync(second)
	f.Add(s.pack(s.snapshots()[0]))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := open(t, b, archive.Limits{Files: 100, FileBytes: 1 << 20})
		if err != nil {
			return
		}
		c, err := newSite(t).dir.PlanReplace(t.Context(), a.Header, a.Files)
		if err != nil {
			return
		}
		for _, change := range c.List {
			require.True(t, fs.ValidPath(change.Path) && !resource.NeverTouch(change.Path), "%q", change.Path)
		}
	})
}
