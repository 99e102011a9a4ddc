package disk

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

func testJournal() *journal {
	return &journal{
		header: testHeader, name: "20261120T063000.000Z-0123456", areas: []string{"", "projects"},
		refuse: true, base: base{known: true, commit: plan.ID{9}, files: 12},
		changes: []plan.Change{
			{Op: plan.Create, Path: "a", ID: plan.ID{1}, Exec: true},
			{Op: plan.Delete, Path: "b/c", FoundID: plan.ID{2}, Found: plan.Stat{Kind: plan.File, Size: 3, Mtime: -4, Exec: true}, Conflict: true, Owned: true},
			{Op: plan.Adopt, Path: "d", ID: plan.ID{3}, FoundID: plan.ID{4}, Origin: 5},
		},
		signed: map[string]plan.ID{"a": {8}},
		slots:  []slot{{area: 1, ino: 77, size: 3, mtime: 4}, {}, {}},
		dirs:   []directory{{path: "x", made: true, perm: 0o755}, {path: "b", perm: 0o755}},
		tasks:  []task{{taskMkdir, 0}, {taskWrite, 0}, {taskRemove, 1}, {taskRmdir, 1}},
	}
}

func encodeJournal(t testing.TB, j *journal) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, j.encode(&b))
	return b.Bytes()
}

func decodeBytes(b []byte) (*journal, error) {
	return decodeJournal(bytes.NewReader(b), int64(len(b)), 1<<20)
}

func TestJournalSaysAllOfARun(t *testing.T) {
	want := testJournal()
	got, err := decodeBytes(encodeJournal(t, want))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestDamagedJournalIsRefusedAndNeverPanics(t *testing.T) {
	b := encodeJournal(t, testJournal())
	for i := range b {
		x := bytes.Clone(b)
		x[i] ^= 0x20
		_, err := decodeBytes(x)
		require.ErrorIs(t, err, safe.ErrDamaged, "byte %d", i)
		_, err = decodeBytes(b[:i])
		require.ErrorIs(t, err, safe.ErrDamaged, "%d bytes", i)
		_, _ = decodeBytes(sealed(x[:max(len(journalMagic), i)])) // must not panic
	}
}

// sealed appends a valid checksum, so that the parser sees the bytes.
func sealed(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(bytes.Clone(b), sum[:]...)
}

func TestDamagedJournalSendsTheStagedBytesToLostAndFound(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a.json": "1"}))
	require.NoError(t, d.Close())
	put(t, root, ".stoker/staging/3", "perhaps the gateway's")
	put(t, root, ".stoker/journal", "torn")

	d = open(t, root, Options{Now: fixed})
	lost, err := d.LostAndFound()
	require.NoError(t, err)
	require.Len(t, lost, 1)
	b, err := os.ReadFile(filepath.Join(root, safe.OwnDir, lostDir, lost[0].File))
	require.NoError(t, err)
	assert.Equal(t, "perhaps the gateway's", string(b))
	assert.False(t, d.Manifest().Header().Complete, "the next plan has to compare every file")
	assert.Equal(t, 1, d.Manifest().Header().Files)
	require.NoError(t, os.Remove(filepath.Join(root, safe.OwnDir, journalFile+safe.AsideSuffix)))
	assertNoLeftovers(t, root)
}

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
		require.Empty(t, cmp.Diff(r.changes, again.changes))
		require.Equal(t, r.tasks, again.tasks)
		for _, c := range r.changes {
			require.NoError(t, safe.CheckPath(c.Path))
		}
	})
}
