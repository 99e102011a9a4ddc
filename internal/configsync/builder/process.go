package builder

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// childPrefix begins the name of a child process; the name of its function follows.
	childPrefix = "stoker-"
	// maxCPU and maxMemory bound a child. The memory is twice what manifest.MaxBytes of objects need.
	maxCPU    = 5 * time.Second
	maxMemory = 192 << 20
	// maxCrash bounds what is read of the output of a child that crashes.
	maxCrash = 4 << 10
)

// Main runs a function and exits, if a Builder has started this process. Each program that uses a Builder calls it before anything else,
// with the functions by their names.
func Main(functions map[string]Function) {
	if len(os.Args) != 1 {
		return
	}
	name, started := strings.CutPrefix(os.Args[0], childPrefix)
	if f := functions[name]; started && f != nil {
		os.Exit(child(f, os.Stdin, os.Stdout))
	}
}

// exitCPU is the exit status of a child that took more than maxCPU.
const exitCPU = 152 // as a shell shows SIGXCPU

// child runs f on what it reads from in. It writes the result to out, or the reason and the text of an error, after a byte that says
// which.
func child(f Function, in io.Reader, out io.Writer) int {
	if err := limit(maxCPU, maxMemory); err != nil {
		return 1
	}
	debug.SetMemoryLimit(maxMemory * 3 / 4)
	result, err := protect(f, gob.NewDecoder(bufio.NewReader(in)))
	text := append([]byte{'o'}, result...)
	if err != nil {
		text = []byte("e" + string(failure.Reason(err, "")) + "\n" + err.Error())
	}
	if _, err := out.Write(text); err != nil {
		return 1
	}
	return 0
}

// protect calls f, and turns a panic into an error.
func protect(f Function, in *gob.Decoder) (_ []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the tool panics: %v", r)
		}
	}()
	return f(in)
}

// Run runs the named function in a process of its own, which decodes values in their order. The process is killed when ctx ends. A deadline
// is not the fault of the files if the processors were busy with other work, so the next run tries again unless the builds of this Builder
// took maxCPU.
func (b *Builder) Run(ctx context.Context, name string, values ...any) ([]byte, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	crash := bound.NewHead(maxCrash)
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Dir = []string{childPrefix + name}, "/"
	cmd.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}
	cmd.Stderr = crash
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return nil, b.stopped(ctx)
		}
		return nil, failure.New(v1alpha1.ReasonProgressing, "the builder cannot start: %w; the next run tries again", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- errors.Join(send(in, values), in.Close()) }()
	answer, readErr := bound.ReadAll(out, manifest.MaxBytes+maxCrash)
	_ = out.Close()
	waitErr := cmd.Wait()
	sendErr := <-sent
	b.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	switch {
	case ctx.Err() != nil:
		return nil, b.stopped(ctx)
	case errors.Is(readErr, bound.ErrTooLarge):
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the build makes more than %d MiB of objects; split it over several ConfigSyncs", manifest.MaxBytes>>20)
	case waitErr != nil:
		return nil, explainCrash(cmd.ProcessState, crash.String())
	case readErr != nil || len(answer) == 0:
		return nil, cmp.Or(readErr, sendErr, errors.New("the builder gave no answer"))
	case answer[0] == 'o':
		return answer[1:], nil
	}
	reason, text, _ := strings.Cut(string(answer[1:]), "\n")
	if reason == "" {
		return nil, errors.New(text)
	}
	return nil, failure.New(v1alpha1.Reason(reason), "%s", text)
}

// stopped says why a build ended with ctx.
func (b *Builder) stopped(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && b.cpu < maxCPU {
		return failure.New(v1alpha1.ReasonProgressing, "the build got only %s of CPU time before its deadline; the next run tries again: "+
			"if that repeats, raise the CPU limit of stoker config run", b.cpu.Round(time.Millisecond))
	}
	return context.Cause(ctx)
}

func send(w io.Writer, values []any) error {
	buffered := bufio.NewWriter(w)
	out := gob.NewEncoder(buffered)
	for _, v := range values {
		if err := out.Encode(v); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// explainCrash returns why a child ended. It shows nothing of the text, which may hold a value of a Secret.
func explainCrash(state *os.ProcessState, text string) error {
	switch {
	case strings.Contains(text, "out of memory") || strings.Contains(text, "cannot allocate memory"):
		return failure.New(v1alpha1.ReasonLimitExceeded, "the build took more than %d MiB of memory; split it over several ConfigSyncs", maxMemory>>20)
	case state.ExitCode() == exitCPU:
		return failure.New(v1alpha1.ReasonLimitExceeded, "the build took more than %s of CPU time; split it over several ConfigSyncs", maxCPU)
	}
	return failure.New(v1alpha1.ReasonLimitExceeded, "the builder was ended by the system (%s), as if memory is short; split it over several ConfigSyncs", state)
}
