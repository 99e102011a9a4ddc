//go:build linux && !race

package disk

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

const envRoot = "DISK_TEST_ROOT"

// limitMemory limits this process to the memory that the chart gives an agent. A Go program that needs more crashes.
func limitMemory(t *testing.T) {
	t.Helper()
	debug.SetGCPercent(20) // as the agent does
	limit := syscall.Rlimit{Cur: 512 << 20, Max: 512 << 20}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_DATA, &limit))
}

// F11, F17 of docs/internals/threats.md: no file in .stoker, even with valid checksums, makes the agent exceed its memory.
//
// Each sub-test runs twice. The test process writes the file, without a limit, and passes its directory in envRoot to a child
// process, which limits its memory and opens the directory.
func TestOwnFilesFitInMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	sparse := func(t *testing.T, path string) {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, 1<<30))
	}
	cases := map[string]struct {
		at    string
		write func(t *testing.T, path string)
	}{
		"sparse journal":  {journalFile, sparse},
		"sparse undo":     {undoFile, sparse},
		"sparse manifest": {manifestFile, sparse},
		"sparse note":     {records.NotePrefix + "x", sparse},
		"sparse areas":    {areasFile, sparse},
		"sparse lock":     {lock.FileName, sparse},
		"journal of too many changes": {journalFile, func(t *testing.T, path string) {
			writeJournal(t, path, 2_000_000, func(i int) string { return fmt.Sprintf("p%07d", i) })
		}},
		"journal of long paths": {journalFile, func(t *testing.T, path string) {
			long := strings.Repeat("x/", 60) + strings.Repeat("y", 60_000)
			writeJournal(t, path, 5500, func(i int) string { return fmt.Sprintf("p%07d/%s", i, long) })
		}},
		"manifest of long paths with a common prefix": {manifestFile, func(t *testing.T, path string) {
			long := strings.Repeat("x", safe.MaxPath-10)
			var block []byte
			for i := range 12_000 { // a directory whose path shares all but its number with the previous one
				shared, rest := len(long), fmt.Sprintf("%08d", i)
				if i == 0 {
					shared, rest = 0, long+rest
				}
				block = append(appendText(binary.AppendUvarint(block, uint64(shared)), rest), 1)
			}
			forgeManifest(t, path, long+"00000000", 12_000, block)
		}},
		"manifest of a large index": {manifestFile, func(t *testing.T, path string) {
			forgeIndex(t, path, 100<<20)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := os.Getenv(envRoot)
			if root == "" { // this is the test process
				root = seeded(t)
				require.NoError(t, os.Mkdir(filepath.Join(root, safe.OwnDir), 0o700))
				c.write(t, filepath.Join(root, safe.OwnDir, c.at))
				t.Setenv(envRoot, root)
			}
			if !inChildProcess(t, false) {
				return
			}
			limitMemory(t)
			d := open(t, root, Options{})
			_, err := d.Note("x")
			require.NoError(t, err)
			apply(t, d, text(map[string]string{"projects/p/a.json": "1"}))
			_, err = d.Drift(t.Context(), true)
			require.NoError(t, err)
			assert.Equal(t, "1", contents(t, root)["projects/p/a.json"])
		})
	}
}

// writeJournal writes a journal with n files to create and a valid checksum.
func writeJournal(t *testing.T, path string, n int, name func(int) string) {
	t.Helper()
	r := &format.Journal{Header: plan.Header{Ref: "main", Commit: plan.ID{1}}, LostFolder: "20261120T063000.000Z-0123456", Areas: []string{""}}
	for i := range n {
		r.Changes = append(r.Changes, plan.Change{Op: plan.Create, Path: name(i)})
		r.Slots = append(r.Slots, format.Slot{})
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, r.Encode(f))
	require.NoError(t, f.Close())
}

// forgeManifest writes a manifest with valid checksums that has a single block with dirs directories. first is the first path of
// the block. The writer of package format would refuse to write such a block.
func forgeManifest(t *testing.T, path, first string, dirs int, block []byte) {
	t.Helper()
	index := appendText(nil, first)
	index = binary.AppendUvarint(index, uint64(len(block)))
	index = binary.LittleEndian.AppendUint32(index, crc32.Checksum(block, crc))
	index = binary.AppendUvarint(append(index, 0), uint64(dirs))
	writeManifest(t, path, block, func(put func([]byte)) int {
		put(index)
		return 1
	})
}

// forgeIndex writes a manifest without records whose index has at least size bytes.
func forgeIndex(t *testing.T, path string, size int) {
	t.Helper()
	writeManifest(t, path, nil, func(put func([]byte)) int {
		n := 0
		for index := 0; index < size; n++ {
			b := append(appendText(nil, fmt.Sprintf("%08x", n)), 0, 0, 0, 0, 0, 0, 0)
			put(b)
			index += len(b)
		}
		return n
	})
}

// writeManifest writes a manifest in the layout that package format describes: magic, block, a fixed header, the index and the
// footer. index writes the index with put, and returns the number of blocks in it.
func writeManifest(t *testing.T, path string, block []byte, index func(put func([]byte)) int) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	sum, size, w := uint32(0), 0, bufio.NewWriter(f)
	put := func(b []byte) {
		sum, size = crc32.Update(sum, crc, b), size+len(b)
		_, err := w.Write(b)
		require.NoError(t, err)
	}
	const magic = "stokerm1"
	_, err = w.Write(append([]byte(magic), block...))
	require.NoError(t, err)
	head := []byte(`{"ref":"main","commit":"0100000000000000000000000000000000000000","files":0,"complete":true}`)
	put(head)
	n := index(put)
	foot := binary.LittleEndian.AppendUint64(nil, uint64(len(magic)+len(block)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(len(head)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(size-len(head)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(n))
	put(foot)
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, sum), magic...))
	require.NoError(t, err)
	require.NoError(t, w.Flush())
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var crc = crc32.MakeTable(crc32.Castagnoli)
