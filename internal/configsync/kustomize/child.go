package kustomize

import (
	"bufio"
	"bytes"
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

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// childName is the name of a process that builds one kustomization.
	childName = "stoker-kustomize"
	// maxCPU and maxMemory bound a child. The memory is twice what manifest.MaxBytes of objects need.
	maxCPU    = 5 * time.Second
	maxMemory = 192 << 20
	// maxCrash bounds what is read of the output of a child that crashes.
	maxCrash = 4 << 10
)

// Main builds a kustomization and exits, if a Builder has started this process. Each program that uses a Builder calls it before anything
// else.
func Main() {
	if len(os.Args) == 1 && os.Args[0] == childName {
		os.Exit(child(os.Stdin, os.Stdout))
	}
}

// exitCPU is the exit status of a child that took more than maxCPU.
const exitCPU = 152 // as a shell shows SIGXCPU

// inputFile is a file that a child reads. The first one is empty, and has the name of the folder to build.
type inputFile struct {
	Name    string
	Content []byte
}

// child builds the kustomization that it reads from in. It writes the objects to out, or the reason and the text of an error, after a byte that
// says which.
func child(in io.Reader, out io.Writer) int {
	if err := limit(maxCPU, maxMemory); err != nil {
		return 1
	}
	debug.SetMemoryLimit(maxMemory * 3 / 4)
	objects, err := buildInput(gob.NewDecoder(bufio.NewReader(in)))
	text := append([]byte{'o'}, objects...)
	if err != nil {
		text = []byte("e" + string(failure.Reason(err, "")) + "\n" + err.Error())
	}
	if _, err := out.Write(text); err != nil {
		return 1
	}
	return 0
}

func buildInput(in *gob.Decoder) ([]byte, error) {
	var folder inputFile
	if err := in.Decode(&folder); err != nil {
		return nil, err
	}
	files := filesys.MakeFsInMemory()
	for {
		var f inputFile
		switch err := in.Decode(&f); {
		case errors.Is(err, io.EOF):
			return runKustomize(files, folder.Name)
		case err != nil:
			return nil, err
		}
		if err := files.WriteFile(f.Name, f.Content); err != nil {
			return nil, err
		}
	}
}

// runKustomize calls kustomize, and turns a panic into an error.
func runKustomize(files filesys.FileSystem, dir string) (_ []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize panics: %v", r)
		}
	}()
	objects, err := krusty.MakeKustomizer(&krusty.Options{
		Reorder: krusty.ReorderOptionNone, LoadRestrictions: types.LoadRestrictionsRootOnly, PluginConfig: types.DisabledPluginConfig(),
	}).Run(files, dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, o := range objects.Resources() {
		data, err := o.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if out.Len()+len(data) > manifest.MaxBytes {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the objects have more than %d bytes; split it over several ConfigSyncs", manifest.MaxBytes)
		}
		out.WriteString("---\n")
		out.Write(data)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// runChild builds the kustomization in dir in a process of its own, and returns the objects as JSON documents. The process runs this same
// program, has bounds for CPU time and memory, and is killed when ctx ends. A deadline says nothing about the kustomization if the processors
// were busy with other work, so the next run tries again unless the builds of this one took maxCPU.
func (b *Builder) runChild(ctx context.Context, files []inputFile, dir string) ([]byte, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	crash := bound.NewHead(maxCrash)
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Dir = []string{childName}, "/"
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
	go func() { sent <- errors.Join(send(in, files, dir), in.Close()) }()
	answer, readErr := io.ReadAll(io.LimitReader(out, manifest.MaxBytes+maxCrash))
	_ = out.Close()
	waitErr := cmd.Wait()
	sendErr := <-sent
	b.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	switch {
	case ctx.Err() != nil:
		return nil, b.stopped(ctx)
	case waitErr != nil:
		return nil, explainCrash(cmd.ProcessState, crash.String())
	case len(answer) == 0:
		return nil, cmp.Or(readErr, sendErr, errors.New("the builder of kustomizations gave no answer"))
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

func send(w io.Writer, files []inputFile, dir string) error {
	buffered := bufio.NewWriter(w)
	out := gob.NewEncoder(buffered)
	if err := out.Encode(inputFile{Name: dir}); err != nil {
		return err
	}
	for _, f := range files {
		if err := out.Encode(f); err != nil {
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
