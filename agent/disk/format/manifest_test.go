package format

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// some returns n sorted records in a gateway's layout.
func some(n int) []Record {
	list := make([]Record, 0, n)
	for i := 0; len(list) < n; i++ {
		dir := fmt.Sprintf("projects/p%03d/com.inductiveautomation.perspective/views/Area %04d/v", i/900, i)
		list = append(list, Record{Owned: plan.Owned{Path: dir}, Dir: true})
		for _, f := range []string{"resource.json", "thumbnail.png", "view.json"} {
			r := Record{Owned: plan.Owned{Path: dir + "/" + f, Size: int64(i * 7), Mtime: int64(1e18 + i), Origin: uint16(i % 3), Exec: i%5 == 0}}
			r.Want = plan.BlobID([]byte(r.Path))
			if r.Have = r.Want; i%4 == 0 {
				r.Have = plan.BlobID([]byte(dir))
			}
			list = append(list, r)
		}
	}
	list = list[:n]
	slices.SortFunc(list, func(a, b Record) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func setAll(list []Record) Edits {
	return func(yield func(Edit) bool) {
		for _, rec := range list {
			if !yield(Edit{editSet, rec}) {
				return
			}
		}
	}
}

// encode returns the manifest that results from applying e to old.
func encode(t testing.TB, h plan.Header, old *Manifest, e Edits) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Merge(&b, h, old, e))
	return b.Bytes()
}

func decodeManifest(t testing.TB, b []byte) *Manifest {
	t.Helper()
	m, err := readManifest(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	return m
}

func everyRecord(t testing.TB, m *Manifest) []Record {
	t.Helper()
	var list []Record
	for r, err := range m.records("") {
		require.NoError(t, err)
		list = append(list, r)
	}
	return list
}

var testHeader = plan.Header{Ref: "main", Commit: plan.ID{1}, Rules: "r", Mappings: []plan.Origin{{Source: "a", Destination: "b"}}, Complete: true}

func TestManifestKeepsEveryRecord(t *testing.T) {
	for _, n := range []int{0, 1, 4, 3000} {
		list := some(n)
		m := decodeManifest(t, encode(t, testHeader, NoManifest(), setAll(list)))
		files := 0
		for _, r := range list {
			got, ok, err := m.Lookup(r.Path)
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, r, got)
			if !r.Dir {
				files++
			}
		}
		h := testHeader
		h.Files = files
		assert.Equal(t, h, m.Header())
		assert.Empty(t, cmp.Diff(list, append([]Record{}, everyRecord(t, m)...), cmp.AllowUnexported(Record{})))
		for _, p := range []string{"", "a", "projects/p000", "projects/p000/com.inductiveautomation.perspective/views/Area 0001/v", "zzz"} {
			t.Run(p, func(t *testing.T) {
				_, ok, err := m.Get(p)
				require.NoError(t, err)
				assert.False(t, ok, "%q is not a file", p)
			})
		}
	}
}

func TestManifestAllOfPrefix(t *testing.T) {
	list := some(3000)
	m := decodeManifest(t, encode(t, testHeader, NoManifest(), setAll(list)))
	for _, prefix := range []string{"", "projects/", "projects/p000/com.inductiveautomation.perspective/views/Area 05", list[1500].Path, "a", "z"} {
		t.Run(prefix, func(t *testing.T) {
			var want, got []string
			for _, r := range list {
				if !r.Dir && strings.HasPrefix(r.Path, prefix) {
					want = append(want, r.Path)
				}
			}
			for r, err := range m.All(prefix) {
				require.NoError(t, err)
				got = append(got, r.Path)
			}
			assert.Equal(t, want, got, prefix)
		})
	}
}

func TestMergeCopiesUneditedBlocks(t *testing.T) {
	old := decodeManifest(t, encode(t, testHeader, NoManifest(), setAll(some(5000))))
	list := everyRecord(t, old)
	r := list[slices.IndexFunc(list[2500:], func(r Record) bool { return !r.Dir })+2500]
	r.Have = plan.ID{9}
	now := decodeManifest(t, encode(t, testHeader, old, setAll([]Record{r})))
	require.Len(t, now.blocks, len(old.blocks))
	same := 0
	for i := range old.blocks {
		if old.blocks[i].sum == now.blocks[i].sum {
			same++
		}
	}
	assert.Equal(t, len(old.blocks)-1, same)
}

func TestMergeKeepsBlocksLarge(t *testing.T) {
	list := some(4000)
	m := decodeManifest(t, encode(t, testHeader, NoManifest(), setAll(list)))
	for i := 0; i < len(list); i += 9 { // delete most, in several merges
		var drop []Edit
		for _, r := range list[i:min(i+8, len(list))] {
			drop = append(drop, Edit{op: editDrop, Rec: r})
		}
		m = decodeManifest(t, encode(t, testHeader, m, slices.Values(drop)))
	}
	assert.Len(t, everyRecord(t, m), 444, "every ninth of 4000")
	assert.LessOrEqual(t, len(m.blocks), 2)
}

func TestDamagedManifest(t *testing.T) {
	b := encode(t, testHeader, NoManifest(), setAll(some(400)))
	every := 1
	if testing.Short() {
		every = 5 // damage every fifth byte
	}
	for i := 0; i < len(b); i += every {
		x := bytes.Clone(b)
		x[i] ^= 0x41
		_, err := readManifest(bytes.NewReader(x), int64(len(x)))
		if i >= len(manifestMagic) { // the first magic only helps a person identify the file
			require.ErrorIs(t, err, safe.ErrDamaged, "byte %d", i)
		}
	}
	for n := 0; n < len(b); n += every {
		_, err := readManifest(bytes.NewReader(b[:n]), int64(n))
		require.ErrorIs(t, err, safe.ErrDamaged, "%d bytes", n)
	}
}

// FuzzManifest merges random edits, compares the result with a map, and reads foreign bytes.
func FuzzManifest(f *testing.F) {
	f.Add([]byte("abcabcabd"), []byte{1, 2, 3}, uint16(0))
	f.Add(bytes.Repeat([]byte("projects/p/x"), 9), []byte{7, 0, 9}, uint16(77))
	f.Add([]byte{}, encodeSeed(), uint16(3))
	f.Fuzz(func(t *testing.T, paths, foreign []byte, flip uint16) {
		if m, err := readManifest(bytes.NewReader(foreign), int64(len(foreign))); err == nil {
			for _, err := range m.records("") {
				require.NoError(t, err)
			}
		}
		m, model := NoManifest(), map[string]Record{}
		for round := range 3 {
			var list []Edit
			for i, p := range bytes.SplitN(paths, []byte{'a' + byte(round)}, 50) {
				r := Record{Owned: plan.Owned{Path: string(p) + fmt.Sprint(i%7), Size: int64(i), Mtime: -int64(i), Want: plan.ID{byte(i)}, Have: plan.ID{byte(round)}}}
				list = append(list, Edit{editOp(1 + (i+round)%3), r})
			}
			slices.SortStableFunc(list, func(a, b Edit) int { return strings.Compare(a.Rec.Path, b.Rec.Path) })
			list = slices.CompactFunc(list, func(a, b Edit) bool { return a.Rec.Path == b.Rec.Path })
			m = decodeManifest(t, encode(t, testHeader, m, slices.Values(list)))
			for i := range list {
				var old *Record
				if r, ok := model[list[i].Rec.Path]; ok {
					old = &r
				}
				delete(model, list[i].Rec.Path)
				if r, ok := list[i].Apply(old); ok {
					model[r.Path] = r
				}
			}
		}
		got := everyRecord(t, m)
		require.Len(t, got, len(model))
		for _, r := range got {
			require.Equal(t, model[r.Path], r)
		}
		b := encode(t, testHeader, m, NoEdits)
		b[int(flip)%len(b)] ^= 1
		_, _ = readManifest(bytes.NewReader(b), int64(len(b))) // must not panic
	})
}

func encodeSeed() []byte {
	var b bytes.Buffer
	if err := Merge(&b, testHeader, NoManifest(), setAll(some(5))); err != nil {
		return nil
	}
	return b.Bytes()
}

// testJournal returns a Journal in which every field of the file is set, except Directory.Whole.
func testJournal() *Journal {
	return &Journal{
		Header: testHeader, LostFolder: "20261120T063000.000Z-0123456", Areas: []string{"", "projects"},
		RefuseForeign: true, Base: Base{known: true, commit: plan.ID{9}, sum: 12},
		Snapshot: "area-4-20261120-063000", Restores: "area-4-20261119-063000",
		Changes: []plan.Change{
			{Op: plan.Create, Path: "a", ID: plan.ID{1}, Exec: true, Unrecorded: true},
			{Op: plan.Delete, Path: "b/c", FoundID: plan.ID{2}, Found: plan.Stat{Kind: plan.File, Size: 3, Mtime: -4, Exec: true}, Conflict: true, Owned: true},
			{Op: plan.Adopt, Path: "d", ID: plan.ID{3}, FoundID: plan.ID{4}, Origin: 5},
		},
		Signed: map[string]plan.ID{"a": {8}},
		Slots:  []Slot{{Area: 1, Ino: 77, Size: 3, Mtime: 4}, {}, {}},
		Dirs:   []Directory{{Path: "x", Create: true, Perm: 0o755}, {Path: "b", Perm: 0o755}},
		Steps:  []Step{{StepMkdir, 0}, {StepWrite, 0}, {StepRemove, 1}, {StepRmdir, 1}},
	}
}

func encodeJournal(t testing.TB, j *Journal) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, j.Encode(&b))
	return b.Bytes()
}

func decodeBytes(b []byte) (*Journal, error) {
	return DecodeJournal(bytes.NewReader(b), int64(len(b)), 1<<20)
}

func TestJournalRoundTrip(t *testing.T) {
	want := testJournal()
	got, err := decodeBytes(encodeJournal(t, want))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// readBytes reads a journal with ReadJournal.
func readBytes(b []byte) (j *Journal, changes []plan.Change, err error) {
	j, err = ReadJournal(bytes.NewReader(b), int64(len(b)), 1<<20, func(at int, c plan.Change) error {
		if at != len(changes) {
			return fmt.Errorf("change %d came as number %d", len(changes), at)
		}
		changes = append(changes, c)
		return nil
	})
	return j, changes, err
}

func TestReadJournal(t *testing.T) {
	want := testJournal()
	b := encodeJournal(t, want)
	t.Run("changes", func(t *testing.T) {
		got, changes, err := readBytes(b)
		require.NoError(t, err)
		assert.Equal(t, want.Changes, changes)
		assert.Equal(t, &Journal{Header: want.Header, LostFolder: want.LostFolder, RefuseForeign: want.RefuseForeign, Base: want.Base, Snapshot: want.Snapshot, Restores: want.Restores}, got)
	})
	t.Run("head only", func(t *testing.T) {
		got, err := ReadJournal(bytes.NewReader(b), int64(len(b)), 1<<20, nil)
		require.NoError(t, err)
		assert.Equal(t, want.Header, got.Header)
	})
	t.Run("ends with the caller's error", func(t *testing.T) {
		calls, stop := 0, errors.New("stop")
		_, err := ReadJournal(bytes.NewReader(b), int64(len(b)), 1<<20, func(int, plan.Change) error {
			calls++
			return stop
		})
		require.ErrorIs(t, err, stop)
		assert.Equal(t, 1, calls)
	})
}

// A journal with one changed byte, or a truncated one, is ErrDamaged. So is one whose directories to stage whole overlap or get no file.
func TestDamagedJournal(t *testing.T) {
	b := encodeJournal(t, testJournal())
	for i := range b {
		damaged := bytes.Clone(b)
		damaged[i] ^= 0x20
		_, err := decodeBytes(damaged)
		require.ErrorIs(t, err, safe.ErrDamaged, "byte %d", i)
		_, err = decodeBytes(b[:i])
		require.ErrorIs(t, err, safe.ErrDamaged, "%d bytes", i)
		_, _, err = readBytes(damaged)
		require.ErrorIs(t, err, safe.ErrDamaged, "byte %d", i)
		_, _ = decodeBytes(sealed(damaged[:max(len(journalMagic), i)])) // must not panic
	}
	for name, paths := range map[string][]string{
		"a directory twice": {"b", "b"}, "nested directories, innermost first": {"b/c", "b"}, "nested directories, outermost first": {"b", "b/c"},
		"no file to write": {"z"},
	} {
		t.Run(name, func(t *testing.T) {
			j := testJournal()
			j.Changes[1] = plan.Change{Op: plan.Create, Path: "b/c/d"}
			j.Dirs, j.Steps = nil, nil
			for _, p := range paths {
				j.Dirs = append(j.Dirs, Directory{Path: p, Create: true, Whole: true})
			}
			_, err := decodeBytes(encodeJournal(t, j))
			require.ErrorIs(t, err, safe.ErrDamaged)
			j.Dirs = []Directory{{Path: "b", Create: true, Whole: true}}
			_, err = decodeBytes(encodeJournal(t, j))
			require.NoError(t, err)
		})
	}
}

// sealed appends a valid checksum, so that DecodeJournal parses b instead of rejecting it.
func sealed(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(bytes.Clone(b), sum[:]...)
}

// DecodeJournal never panics. What it accepts has only safe paths, and its changes and steps stay the same when it is encoded and decoded again.
func FuzzJournal(f *testing.F) {
	b := encodeJournal(f, testJournal())
	f.Add(b[:len(b)-sha256.Size])
	f.Add([]byte(journalMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeBytes(b) // must not panic
		r, err := decodeBytes(sealed(b))
		if err != nil {
			require.ErrorIs(t, err, safe.ErrDamaged)
			return
		}
		again, err := decodeBytes(encodeJournal(t, r))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(r.Changes, again.Changes))
		_, changes, err := readBytes(sealed(b))
		require.NoError(t, err)
		require.True(t, slices.Equal(r.Changes, changes))
		require.Equal(t, r.Steps, again.Steps)
		for _, c := range r.Changes {
			require.NoError(t, safe.CheckPath(c.Path))
		}
	})
}
