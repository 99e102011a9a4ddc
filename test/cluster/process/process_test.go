package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// holderVariable makes the test binary start two programs and print their IDs. It then waits or panics.
const holderVariable = "STOKER_TEST_HOLDER"

func TestMain(m *testing.M) {
	if how := os.Getenv(holderVariable); how != "" {
		hold(how)
	}
	os.Exit(m.Run())
}

func hold(how string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "holder-")
	if err != nil {
		panic(err)
	}
	g := NewGroup(dir)
	for _, name := range []string{"a", "b"} {
		if err := g.Start(Program{Name: name, Path: "/bin/sleep", Args: []string{"1000"}}); err != nil {
			panic(err)
		}
	}
	fmt.Println(dir, g.States()[0].PID, g.States()[1].PID)
	if how == "panic" {
		panic("asked for")
	}
	<-ctx.Done()
	os.Exit(1) // without ending the programs that it started
}

func group(t *testing.T) *Group {
	g := NewGroup(t.TempDir())
	t.Cleanup(func() { assert.NoError(t, g.Close(true)) })
	return g
}

func sleeper(name string) Program {
	return Program{Name: name, Path: "/bin/sleep", Args: []string{"1000"}}
}

// lives reports whether a process exists and is not a zombie.
func lives(t *testing.T, pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	require.NoError(t, err)
	state := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return state[0] != 'Z' && state[0] != 'X'
}

func TestProgramsEndWithStarter(t *testing.T) {
	for _, how := range []string{"kill", "interrupt", "panic"} {
		t.Run(how, func(t *testing.T) {
			holder := exec.Command(os.Args[0])
			holder.Env = append(os.Environ(), holderVariable+"="+how)
			holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := holder.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, holder.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			said := strings.Fields(line)
			require.Len(t, said, 3)
			defer func() { assert.NoError(t, os.RemoveAll(said[0])) }()
			switch how {
			case "kill":
				require.NoError(t, holder.Process.Kill())
			case "interrupt":
				require.NoError(t, syscall.Kill(-holder.Process.Pid, syscall.SIGINT)) // like Ctrl-C
			}
			assert.Error(t, holder.Wait())
			for _, field := range said[1:] {
				pid, err := strconv.Atoi(field)
				require.NoError(t, err)
				assert.Eventually(t, func() bool { return !lives(t, pid) }, time.Minute, 10*time.Millisecond, "process %d outlived its starter", pid)
			}
		})
	}
}

func TestStopKillRestart(t *testing.T) {
	g := group(t)
	require.NoError(t, g.Start(sleeper("a")))
	first := g.States()[0].PID
	require.True(t, lives(t, first))
	assert.ErrorContains(t, g.Start(sleeper("a")), "runs already")
	assert.ErrorContains(t, g.Restart("a"), "runs already")

	require.NoError(t, g.Stop("a"))
	assert.Equal(t, []State{{Name: "a"}}, g.States())
	assert.False(t, lives(t, first))
	assert.NoError(t, g.Stop("a"), "Stop must succeed for a program that has ended")
	assert.ErrorContains(t, g.Pause("a"), "does not run")

	require.NoError(t, g.Restart("a"))
	second := g.States()[0].PID
	assert.NotEqual(t, first, second)
	require.NoError(t, g.Pause("a"))
	require.NoError(t, g.Stop("a"), "Stop must end a paused program")
	require.NoError(t, g.Restart("a"))
	require.NoError(t, g.Kill("a"))
	assert.False(t, lives(t, second))

	assert.ErrorContains(t, g.Stop("b"), `no program "b"; there are ["a"]`)
	require.NoError(t, g.Close(true))
	assert.ErrorContains(t, g.Start(sleeper("c")), "closed")
}

func TestUnresponsiveProgramIsKilled(t *testing.T) {
	g := group(t)
	require.NoError(t, g.Start(Program{
		Name: "deaf", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"},
		StopTimeout: 100 * time.Millisecond,
	}))
	require.NoError(t, g.Wait(context.Background(), "trap", func(context.Context) error {
		if g.Tail("deaf") != "deaf" {
			return errors.New("not yet deaf")
		}
		return nil
	}))
	pid := g.States()[0].PID
	require.NoError(t, g.Stop("deaf"))
	assert.False(t, lives(t, pid))
}

func TestWaitErrors(t *testing.T) {
	g := group(t)
	require.NoError(t, g.Start(Program{Name: "short", Path: "/bin/sh", Args: []string{"-c", "echo no such flag; exit 3"}}))
	notReady := func(context.Context) error { return errors.New("not ready") }
	err := g.Wait(context.Background(), "server", notReady, "short")
	var ended *EndedError
	require.ErrorAs(t, err, &ended)
	assert.Equal(t, "short", ended.Name)
	assert.ErrorContains(t, err, "no such flag")

	require.NoError(t, g.Start(sleeper("long")))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	err = g.Wait(ctx, "server", notReady, "long")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "not ready")
}

func TestReservedPort(t *testing.T) {
	var ports Ports
	defer func() { assert.NoError(t, ports.Close()) }()
	first, err := ports.Reserve()
	require.NoError(t, err)
	second, err := ports.Reserve()
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
	_, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first)))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first)))
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "a reserved port must not listen")
}
