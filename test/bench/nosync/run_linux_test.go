package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const role = "NOSYNC_TEST_ROLE"

// TestMain lets the test binary also serve as the program behind the filter, and as the one that installs
// it.
func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "filter":
		if err := os.Setenv(role, "ask"); err != nil {
			panic(err)
		}
		fmt.Println(run(os.Args[:1]))
		os.Exit(1)
	case "ask":
		fmt.Print(answers())
	default:
		os.Exit(m.Run())
	}
}

// answers makes calls with an invalid descriptor. A call that is really made returns EBADF.
func answers() string {
	made := func(err error) bool { return errors.Is(err, unix.EBADF) }
	return fmt.Sprint("fsync ", made(unix.Fsync(-1)), ", fdatasync ", made(unix.Fdatasync(-1)), ", syncfs ", made(unix.Syncfs(-1)), ", close ", made(unix.Close(-1)))
}

func TestSkippedSystemCalls(t *testing.T) {
	assert.Equal(t, "fsync true, fdatasync true, syncfs true, close true", answers())
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), role+"=filter")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "fsync false, fdatasync false, syncfs false, close true", string(out))
}

func TestMissingProgram(t *testing.T) {
	assert.ErrorIs(t, run([]string{"no-such-program-anywhere"}), exec.ErrNotFound)
	assert.Error(t, run(nil))
}
