package format

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// testJournal returns a Journal in which every field is set.
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

// A journal with one changed byte, or a truncated one, is ErrDamaged.
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
}

// sealed appends a valid checksum, so that DecodeJournal parses b instead of rejecting it.
func sealed(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(bytes.Clone(b), sum[:]...)
}

// DecodeJournal never panics. What it accepts has only safe paths, and stays the same when it is encoded and decoded again.
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
