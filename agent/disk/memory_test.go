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
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

const envRoot = "DISK_TEST_ROOT"

// limitMemory sets the memory limit of the agent in the chart. Beyond it, the Go program crashes.
func limitMemory(t *testing.T) {
	t.Helper()
	debug.SetGCPercent(20) // as the agent does
	limit := syscall.Rlimit{Cur: 512 << 20, Max: 512 << 20}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_DATA, &limit))
}

// F11, F17: no file in .stoker, even with valid checksums, makes the agent exceed its memory.
func TestNoFileOfTheOwnFolderTakesMoreMemoryThanThereIs(t *testing.T) {
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
		"sparse note":     {notePrefix + "x", sparse},
		"sparse areas":    {areasFile, sparse},
		"sparse lock":     {lockFile, sparse},
		"journal of more changes than there can be": {journalFile, func(t *testing.T, path string) {
			writeJournal(t, path, 2_000_000, func(i int) string { return fmt.Sprintf("p%07d", i) })
		}},
		"journal of long paths": {journalFile, func(t *testing.T, path string) {
			long := strings.Repeat("x/", 60) + strings.Repeat("y", 60_000)
			writeJournal(t, path, 5500, func(i int) string { return fmt.Sprintf("p%07d/%s", i, long) })
		}},
		"manifest of long paths that share all": {manifestFile, func(t *testing.T, path string) {
			long := strings.Repeat("x", safe.MaxPath-10)
			forgeManifest(t, path, func(b []byte) []byte {
				prev := ""
				for i := range 12_000 {
					r := record{dir: true}
					r.Path = fmt.Sprintf("%s%08d", long, i)
					b = appendRecord(b, prev, &r)
					prev = r.Path
				}
				return b
			})
		}},
		"manifest of a large index": {manifestFile, func(t *testing.T, path string) {
			forgeIndex(t, path, 100<<20)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := os.Getenv(envRoot)
			if root == "" { // write the file outside the process with the memory limit
				root = seeded(t)
				require.NoError(t, os.Mkdir(filepath.Join(root, safe.OwnDir), 0o700))
				c.write(t, filepath.Join(root, safe.OwnDir, c.at))
				t.Setenv(envRoot, root)
			}
			if !inside(t, false) {
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
	r := &journal{header: testHeader, name: "20261120T063000.000Z-0123456", areas: []string{""}}
	for i := range n {
		r.changes = append(r.changes, plan.Change{Op: plan.Create, Path: name(i)})
		r.slots = append(r.slots, slot{})
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, r.encode(f))
	require.NoError(t, f.Close())
}

// forgeManifest writes a manifest of one block with valid checksums.
func forgeManifest(t *testing.T, path string, records func([]byte) []byte) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	w := newManifestWriter(f)
	w.b = records(w.b)
	w.cur = block{first: strings.Repeat("x", safe.MaxPath-10) + "00000000", dirs: 12_000}
	require.NoError(t, w.finish(testHeader))
	require.NoError(t, f.Close())
}

// forgeIndex writes a manifest with an index of size bytes.
func forgeIndex(t *testing.T, path string, size int) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	sum, w := uint32(0), bufio.NewWriter(f)
	put := func(b []byte) {
		sum = crc32.Update(sum, castagnoli, b)
		_, err := w.Write(b)
		require.NoError(t, err)
	}
	_, err = w.WriteString(manifestMagic)
	require.NoError(t, err)
	head, err := encodeHeader(testHeader)
	require.NoError(t, err)
	put(head)
	n, index := 0, 0
	for ; index < size; n++ {
		b := appendString(nil, fmt.Sprintf("%08x", n))
		b = append(b, 0, 0, 0, 0, 0, 0, 0)
		put(b)
		index += len(b)
	}
	foot := binary.LittleEndian.AppendUint64(nil, uint64(len(manifestMagic)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(len(head)))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(index))
	foot = binary.LittleEndian.AppendUint32(foot, uint32(n))
	put(foot)
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, sum), manifestMagic...))
	require.NoError(t, err)
	require.NoError(t, w.Flush())
}
