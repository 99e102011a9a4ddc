package rundir_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/rundir"
)

// If this environment variable is set, the test binary creates a run directory below the path in it, and keeps it until it is killed.
const parentVariable = "STOKER_TEST_OWN"

func TestMain(m *testing.M) {
	if parent := os.Getenv(parentVariable); parent != "" {
		d, err := rundir.New(parent, "x")
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Path)
		select {}
	}
	os.Exit(m.Run())
}

// New removes the directory of a process that was killed, and no other.
func TestNewRemovesAbandonedDirectories(t *testing.T) {
	parent := t.TempDir()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), parentVariable+"="+parent)
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	theirs := strings.TrimSpace(line)
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "state"), nil, 0o600))

	first, err := rundir.New(parent, "x")
	require.NoError(t, err)
	assert.DirExists(t, theirs)
	assert.True(t, rundir.Owned(theirs))
	_, err = rundir.Own(theirs)
	require.ErrorIs(t, err, rundir.ErrOwned)

	require.NoError(t, owner.Process.Kill())
	assert.Error(t, owner.Wait())
	assert.False(t, rundir.Owned(theirs))
	require.NoError(t, os.Mkdir(filepath.Join(parent, "other"), 0o755))
	second, err := rundir.New(parent, "x")
	require.NoError(t, err)
	assert.NoDirExists(t, theirs)
	assert.DirExists(t, first.Path, "the directory of a running process must stay")
	assert.DirExists(t, filepath.Join(parent, "other"), "other directories must stay")

	require.NoError(t, first.Remove())
	assert.NoDirExists(t, first.Path)
	require.NoError(t, second.Release())
	assert.DirExists(t, second.Path)
	assert.False(t, rundir.Owned(second.Path))
}

func TestConcurrentOwners(t *testing.T) {
	parent := t.TempDir()
	path := filepath.Join(parent, "run")
	var owners, owned atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				d, err := rundir.Own(path)
				if err != nil {
					continue // another goroutine owns the directory, or has just removed it
				}
				assert.EqualValues(t, 1, owners.Add(1), "a directory must have one owner")
				owned.Add(1)
				owners.Add(-1)
				assert.NoError(t, d.Remove())
			}
		})
	}
	all.Wait()
	assert.NotZero(t, owned.Load())
	left, err := filepath.Glob(filepath.Join(parent, "*.gone-*")) // Remove renames a directory to this before it deletes it
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Test packages that run in parallel create and remove the directories of their clusters at the same time.
func TestConcurrentStartAndEnd(t *testing.T) {
	parent := t.TempDir()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for range 200 {
				d, err := rundir.New(parent, "x")
				if !assert.NoError(t, err) {
					return
				}
				for i := range 20 {
					assert.NoError(t, os.WriteFile(filepath.Join(d.Path, fmt.Sprint(i)), nil, 0o600))
				}
				assert.NoError(t, d.Remove())
			}
		})
	}
	all.Wait()
	left, err := filepath.Glob(filepath.Join(parent, "x-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
