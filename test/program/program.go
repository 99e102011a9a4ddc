// Package program builds programs of this module for tests and runs them as separate processes.
//
//	func TestMain(m *testing.M) { os.Exit(program.M{Tests: m}.Run()) }
//
//	func TestSomething(t *testing.T) {
//		p := program.Start(t, "site-a", exec.Command(program.Build(t, "agent"), "--file", …))
//		…
//		p.End(t, syscall.SIGTERM)
//	}
package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stoker.io/stoker/test/program/output"
)

// linkerFlags let a program contact servers on loopback at addresses that users name. A release refuses them. Symbols for debuggers
// are left out, because they take half of the linker's time.
const linkerFlags = "-s -w -X stoker.io/stoker/internal/httpclient.loopback=allowed"

// endTimeout is how long a program may take to stop: ten times what a loaded machine needs.
const endTimeout = 90 * time.Second

// Log collects the output of a program.
type Log = output.Log

// built holds the programs of this test process.
var built struct {
	mu    sync.Mutex
	dir   string // "" without M, which removes the directory
	files map[string]string
}

// M runs the tests of a package and removes what Build built for them. Tests may be a wrapper around testing.M.
type M struct{ Tests interface{ Run() int } }

// Run runs the tests and returns their exit code.
func (m M) Run() int {
	dir, err := os.MkdirTemp("", "stoker-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built.mu.Lock()
	built.dir, built.files = dir, map[string]string{}
	built.mu.Unlock()
	return m.Tests.Run()
}

// Build builds a main package of this module ("agent", "hooks") and returns the file. It builds each only once for a test
// process.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir == "" {
		t.Fatal("program: no test would remove the binary: write func TestMain(m *testing.M) { os.Exit(program.M{Tests: m}.Run()) }")
	}
	file, ok := built.files[pkg]
	if ok {
		return file
	}
	file = filepath.Join(built.dir, filepath.Base(pkg))
	compile(t, module(), pkg, file)
	dependOnSource(t)
	built.files[pkg] = file
	return file
}

// dependOnSource calls Stat for the source of all programs. go test reuses a cached result only if the files that the test itself used are
// unchanged, and does not see what a child process reads.
func dependOnSource(t testing.TB) {
	t.Helper()
	for _, name := range []string{"go.mod", "go.sum", "agent", "api", "charts", "docs", "hooks", "injector", "internal", "receiver"} {
		err := filepath.WalkDir(filepath.Join(module(), name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasSuffix(path, "_test.go") {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// BuildAt builds a main package as it was at a commit, and returns the file. It skips the test if the clone does not have the commit.
func BuildAt(t testing.TB, commit, pkg string) string {
	t.Helper()
	if out, err := exec.Command("git", "-C", module(), "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("this clone does not have the commit %s: git fetch --unshallow\n%s", commit, out)
	}
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	archive := filepath.Join(dir, "tree.tar")
	for _, args := range [][]string{{"git", "-C", module(), "archive", "--output", archive, commit}, {"mkdir", tree}, {"tar", "-xf", archive, "-C", tree}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
	}
	file := filepath.Join(dir, filepath.Base(pkg))
	compile(t, tree, pkg, file)
	return file
}

// module returns the directory of this module, also in the tests of a nested module.
func module() string {
	_, source, _, ok := runtime.Caller(0)
	if !ok {
		return "."
	}
	return filepath.Join(filepath.Dir(source), "..", "..")
}

func compile(t testing.TB, dir, pkg, file string) {
	t.Helper()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", file, "-ldflags", linkerFlags, "stoker.io/stoker/"+pkg)
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// Process is a running program.
type Process struct {
	// Log holds stdout and stderr.
	Log *Log

	cmd  *exec.Cmd
	done chan struct{}
	err  error // of cmd.Wait; read after done
}

// Start starts a program and kills it at the end of the test. If the test fails, its log shows the output under this name.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Log: &Log{}, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("the log of %s:\n%s", name, p.Log)
		}
	})
	return p
}

// Signal sends a signal.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
}

// End sends a signal, waits until the program has ended, and returns its error.
func (p *Process) End(t testing.TB, s syscall.Signal) error {
	t.Helper()
	p.Signal(t, s)
	return p.Wait(t)
}

// Wait waits until the program has ended, and returns its error.
func (p *Process) Wait(t testing.TB) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(endTimeout):
		t.Fatalf("%s does not end:\n%s", p.cmd.Path, p.Log)
		return errors.New("the program does not end")
	}
}

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Script writes a small script that can be run at once. It holds ForkLock: a process that another goroutine starts while the
// file is open for writing would keep it open for a moment, and running the script would fail with "text file busy"
// (golang/go#22315).
func Script(t testing.TB, file, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// Small builds a main package as a release does, and fails the test if the binary has more bytes than ceiling.
func Small(t testing.TB, pkg string, ceiling int64) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a release")
	}
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "stoker.io/stoker/"+pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MiB", float64(fi.Size())/(1<<20))
	if fi.Size() > ceiling {
		t.Errorf("%s has %d bytes, and may have %d: see which dependency came in: go version -m, go tool nm -size", pkg, fi.Size(), ceiling)
	}
}
