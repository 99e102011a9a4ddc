//go:build linux && !race

// These tests enumerate crashes and are not concurrent. `make test-cluster` runs them without the race detector, which would only slow
// them down.

package disk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
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

// F14: after a crash at any step, the next start brings one commit or the other, and nothing is lost.
func TestCrashAfterAnyStep(t *testing.T) {
	modes := []struct {
		name               string
		cut, strict, quiet bool
		plain, snapshots   bool
		whole              bool
		copied             func(testing.TB, string)
	}{
		{name: "process dies"},
		{name: "power cut, names kept in order", cut: true},
		{name: "power cut, names kept by directory", cut: true, strict: true},
		{name: "power cut, nothing to save", cut: true, strict: true, quiet: true},
		{name: "process dies, no exchange", plain: true},
		{name: "process dies, with a snapshot", snapshots: true},
		{name: "power cut, with a snapshot", snapshots: true, cut: true, strict: true},
		{name: "power cut, with a snapshot, no exchange", snapshots: true, cut: true, plain: true},
		{name: "process dies, with a snapshot, copied by file", snapshots: true, copied: copyByFile},
		{name: "power cut, no exchange", cut: true, plain: true},
		{name: "process dies, copied by file", copied: copyByFile},
		{name: "process dies, copied by file, no exchange", plain: true, copied: copyByFile},
		{name: "power cut, copied by file, same inode numbers", cut: true, copied: copyToSameInodes},
		{name: "process dies, directories staged whole", whole: true},
		{name: "power cut, directories staged whole", whole: true, cut: true, strict: true},
		{name: "power cut, directories staged whole, copied by file", whole: true, cut: true, copied: copyByFile},
		{name: "process dies, directories staged whole, with a snapshot", whole: true, snapshots: true},
	}
	type world struct{ plain, quiet, snapshots, whole bool }
	same := map[world]int{} // the number of modes whose sync takes the same steps
	for _, mode := range modes {
		same[world{mode.plain, mode.quiet, mode.snapshots, mode.whole}]++
	}
	seen := map[world]int{}
	for _, mode := range modes {
		of := world{mode.plain, mode.quiet, mode.snapshots, mode.whole}
		seen[of]++
		first, every := 1, 1
		if testing.Short() { // the modes of one world share every seventh of its steps; otherwise each mode takes them all
			first, every = shortStride(1)*(seen[of]-1)+1, shortStride(1)*same[of]
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld()
			w.plain, w.snapshots, w.whole, w.mayLack = mode.plain, mode.snapshots, mode.whole, mode.copied != nil
			if w.quiet = mode.quiet; w.quiet {
				w.gateways = nil
			}
			n := w.steps(t)
			ends := map[bool]int{}
			for stop := first; stop <= n; stop += every {
				ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
					root := w.build(t)
					c := newPowerCut(t, root)
					c.stop, c.strict = stop, mode.strict
					_, err := w.run(t, root, c)
					if stop < n-10 { // the last steps only remove leftovers, and may fail
						require.Error(t, err)
					}
					if mode.cut {
						c.cut()
					}
					if mode.copied != nil {
						mode.copied(t, root)
					}
					ends[w.check(t, root)]++
				})
				if !ok {
					return
				}
			}
			assert.Positive(t, ends[true])
			assert.Positive(t, ends[false])
		})
	}
}

const (
	envKillRoot = "DISK_TEST_KILL_ROOT"
	envKillStep = "DISK_TEST_KILL_STEP"
)

// TestKilledProcess runs in the process that TestSIGKILLAtAnyStep kills.
func TestKilledProcess(t *testing.T) {
	root := os.Getenv(envKillRoot)
	if root == "" {
		t.Skip("runs in a process of TestSIGKILLAtAnyStep")
	}
	stop, err := strconv.Atoi(os.Getenv(envKillStep))
	require.NoError(t, err)
	steps := 0
	d, err := Open(root, Options{Around: func(_ safe.Effect, do func() error) error {
		if steps++; steps == stop {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return do()
	}})
	require.NoError(t, err)
	_, err = newCrashWorld().sync(t, d)
	require.NoError(t, err)
}

// F14: SIGKILL at any step, and again during recovery.
func TestSIGKILLAtAnyStep(t *testing.T) {
	w := newCrashWorld()
	n, again := w.steps(t), 0
	for stop := 2; stop <= n; stop += shortStride(6) {
		ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
			root := w.build(t)
			// sequence: the second process recovers, and is killed, too
			for _, s := range []int{stop, stop / 2} {
				cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
				cmd.Env = append(os.Environ(), envKillRoot+"="+root, envKillStep+"="+strconv.Itoa(s))
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				if s != stop && err == nil { // it needed fewer steps
					continue
				}
				require.Error(t, err, out.String())
				require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), out.String())
				if s != stop {
					again++
				}
			}
			w.check(t, root)
		})
		if !ok {
			return
		}
	}
	require.Positive(t, again, "no second process was killed")
}

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
		"journal of one directory many times": {journalFile, func(t *testing.T, path string) {
			dirs := slices.Repeat([]format.Directory{{Path: "p", Create: true, Whole: true}}, 500_000)
			writeJournal(t, path, len(dirs), func(i int) string { return fmt.Sprintf("p/%07d", i) }, dirs...)
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
func writeJournal(t *testing.T, path string, n int, name func(int) string, dirs ...format.Directory) {
	t.Helper()
	r := &format.Journal{Header: plan.Header{Ref: "main", Commit: plan.ID{1}}, LostFolder: "20261120T063000.000Z-0123456", Areas: []string{""}, Dirs: dirs}
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
