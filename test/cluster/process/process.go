// Package process starts programs that cannot outlive their starter, and ends, stops and continues them by name.
//
// The kernel ties the life of every program to the thread that started it (Linux: PR_SET_PDEATHSIG), so that a panic, a
// timeout of go test or a SIGKILL leaves nothing behind. Signals use the process handle of a child, so that a reused PID is
// never signaled.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program is a program to start.
type Program struct {
	Name string
	Path string
	Args []string
	Env  []string // nil: the starter's own
	// StopTimeout is the time between SIGTERM and SIGKILL; 0 means ten seconds.
	StopTimeout time.Duration
}

// Group is a set of programs that end together. Their output goes to files in one directory.
type Group struct {
	logs string

	mu       sync.Mutex
	programs map[string]*running
	order    []string // in order of the first start
	closed   bool
	starts   chan func()
}

type running struct {
	Program
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // how it ended; read after done
}

// NewGroup returns a group that writes output to dir/<name>.log. The directory must exist. Close ends the group.
func NewGroup(dir string) *Group {
	g := &Group{logs: dir, programs: map[string]*running{}, starts: make(chan func())}
	go func() {
		// The kernel ties children to this thread and not to the process, so it must last as long as the group.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := range g.starts {
			start()
		}
	}()
	return g
}

// Start starts a program. A known program must have ended.
func (g *Group) Start(p Program) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.start(p)
}

// Restart starts a program that has ended, with the same settings.
func (g *Group) Restart(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, err := g.lookup(name)
	if err != nil {
		return err
	}
	return g.start(r.Program)
}

func (g *Group) start(p Program) error {
	if g.closed {
		return fmt.Errorf("%s: its group has been closed", p.Name)
	}
	before, known := g.programs[p.Name]
	if known && !before.ended() {
		return fmt.Errorf("%s runs already", p.Name)
	}
	log, err := os.OpenFile(g.logPath(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	r := &running{Program: p, done: make(chan struct{})}
	r.cmd = exec.Command(p.Path, p.Args...)
	r.cmd.Env = p.Env
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = TiedToThread()
	started := make(chan error, 1)
	g.starts <- func() { started <- r.cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	g.programs[p.Name] = r
	if !known {
		g.order = append(g.order, p.Name)
	}
	return nil
}

func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (g *Group) lookup(name string) (*running, error) {
	if r, ok := g.programs[name]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("no program %q; there are %q", name, g.order)
}

func (g *Group) find(name string) (*running, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lookup(name)
}

// Stop terminates a program, kills it if it does not end, and waits for its end. A program that has already ended is
// not an error.
func (g *Group) Stop(name string) error {
	r, err := g.find(name)
	if err != nil {
		return err
	}
	return r.stop()
}

func (r *running) stop() error {
	if err := r.signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = r.signal(syscall.SIGCONT) // a paused program would not receive SIGTERM
	timeout := r.StopTimeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return nil
	case <-timer.C:
	}
	return r.kill()
}

// Kill kills a program with SIGKILL and waits for its end.
func (g *Group) Kill(name string) error {
	r, err := g.find(name)
	if err != nil {
		return err
	}
	return r.kill()
}

func (r *running) kill() error {
	if err := r.signal(syscall.SIGKILL); err != nil {
		return err
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-r.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s (process %d) has not ended 30s after SIGKILL: look at its state in /proc", r.Name, r.cmd.Process.Pid)
	}
}

func (r *running) signal(s syscall.Signal) error {
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", r.Name, err)
	}
	return nil
}

// Pause freezes a program: its connections stay open without answers. It waits until all threads have stopped: until
// one of them handles SIGSTOP, the others continue.
func (g *Group) Pause(name string) error {
	if err := g.send(name, syscall.SIGSTOP); err != nil {
		return err
	}
	r, err := g.find(name)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(pauseTimeout); ; {
		paused, err := stopped(r.cmd.Process.Pid)
		if err != nil || paused {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not stopped %s after SIGSTOP", name, pauseTimeout)
		}
		select {
		case <-r.done:
			return fmt.Errorf("%s has ended", name)
		case <-time.After(time.Millisecond):
		}
	}
}

// pauseTimeout is the timeout of Pause.
const pauseTimeout = 30 * time.Second

// Resume continues a paused program.
func (g *Group) Resume(name string) error { return g.send(name, syscall.SIGCONT) }

func (g *Group) send(name string, s syscall.Signal) error {
	r, err := g.find(name)
	if err != nil {
		return err
	}
	if r.ended() {
		return fmt.Errorf("%s does not run", name)
	}
	return r.signal(s)
}

// Ended returns a channel that is closed when the current run of the program ends.
func (g *Group) Ended(name string) (<-chan struct{}, error) {
	r, err := g.find(name)
	if err != nil {
		return nil, err
	}
	return r.done, nil
}

// State is the state of one program of a group.
type State struct {
	Name string
	PID  int // 0 if it does not run
}

// States lists the programs in the order of their first start.
func (g *Group) States() []State {
	g.mu.Lock()
	defer g.mu.Unlock()
	states := make([]State, 0, len(g.order))
	for _, name := range g.order {
		s := State{Name: name}
		if r := g.programs[name]; !r.ended() {
			s.PID = r.cmd.Process.Pid
		}
		states = append(states, s)
	}
	return states
}

// Wait calls ready every 50 milliseconds until it returns nil. If ctx ends first, Wait returns the last error and the output
// of the named programs. If one of these programs ends first, Wait returns an EndedError and the output of that program.
func (g *Group) Wait(ctx context.Context, what string, ready func(context.Context) error, names ...string) error {
	ended := make(chan string, len(names))
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, name := range names {
		done, err := g.Ended(name)
		if err != nil {
			return err
		}
		go func() {
			select {
			case <-done:
				ended <- name
			case <-watch.Done():
			}
		}()
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case name := <-ended:
			return fmt.Errorf("%s: %w\n%s", what, &EndedError{name}, g.Tail(name))
		case <-ctx.Done():
			var output []byte
			for _, name := range names {
				output = fmt.Appendf(output, "\n--- %s\n%s", name, g.Tail(name))
			}
			return fmt.Errorf("%s: %w; last: %w%s", what, ctx.Err(), err, output)
		case <-ticker.C:
		}
	}
}

// EndedError means that a program ended unexpectedly.
type EndedError struct{ Name string }

func (e *EndedError) Error() string { return e.Name + " has ended by itself" }

// Log returns the path of a program's output.
func (g *Group) Log(name string) string { return g.logPath(name) }

func (g *Group) logPath(name string) string { return filepath.Join(g.logs, name+".log") }

// tailBytes is how much Tail returns at most.
const tailBytes = 4000

// Tail returns the end of a program's output, or the text of the error if the output cannot be read.
func (g *Group) Tail(name string) string {
	f, err := os.Open(g.logPath(name))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = f.Seek(-tailBytes, io.SeekEnd)
	}
	output, _ := io.ReadAll(io.LimitReader(f, tailBytes))
	return string(bytes.TrimSpace(output))
}

// Close ends all programs, the last one first, and waits for them. If kill is set, it kills them without SIGTERM. A second
// call does nothing.
func (g *Group) Close(kill bool) error {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	order := slices.Clone(g.order)
	g.mu.Unlock()
	if closed {
		return nil
	}
	slices.Reverse(order)
	var errs []error
	for _, name := range order {
		if kill {
			errs = append(errs, g.Kill(name))
		} else {
			errs = append(errs, g.Stop(name))
		}
	}
	close(g.starts)
	return errors.Join(errs...)
}

// Ports reserves TCP ports of 127.0.0.1 for programs, even while they do not run. A reserved port is bound with
// SO_REUSEPORT and not listened on: only programs that also use SO_REUSEPORT, as etcd and the Kubernetes servers can,
// get it, and no outgoing connection picks it.
type Ports struct{ sockets []int }

// Reserve reserves and returns a free port.
func (p *Ports) Reserve() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	unix.CloseOnExec(fd)
	p.sockets = append(p.sockets, fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, fmt.Errorf("SO_REUSEPORT: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("a socket of 127.0.0.1 has the address %v", name)
	}
	return bound.Port, nil
}

// Close releases the ports.
func (p *Ports) Close() error {
	var errs []error
	for _, fd := range p.sockets {
		errs = append(errs, unix.Close(fd))
	}
	p.sockets = nil
	return errors.Join(errs...)
}
