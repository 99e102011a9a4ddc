package document

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// within is the time limit of a command: ten times what the longest takes.
const within = 3 * time.Minute

// Shell runs commands as a reader does: each in a new shell, with the variables that earlier commands set.
type Shell struct {
	Dir string
	env []string
}

// NewShell returns a shell in a directory, with programs by the names that readers use, an empty home directory, and
// environment variables.
func NewShell(t testing.TB, dir string, programs map[string]string, env ...string) *Shell {
	t.Helper()
	bin := t.TempDir()
	for name, file := range programs {
		if err := os.Symlink(file, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	// programs with the race detector would sleep for a second at exit
	own := []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0"}
	return &Shell{Dir: dir, env: append(own, env...)}
}

// Set sets an environment variable.
func (s *Shell) Set(name, value string) { s.env = append(s.env, name+"="+value) }

// Type runs a command that must succeed, and returns its output.
func (s *Shell) Type(t testing.TB, line string) string {
	t.Helper()
	said, code := s.Try(t, line)
	if code != 0 {
		t.Fatalf("$ %s\n%s\nexit code %d", line, said, code)
	}
	return said
}

// Try runs a command, and returns its output and exit code.
func (s *Shell) Try(t testing.TB, line string) (said string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if name, _, ok := strings.Cut(line, "="); ok && assignment.MatchString(line) {
		out, err := s.command(ctx, line+"\nprintf %s \"$"+name+"\"").Output()
		if err != nil {
			t.Fatalf("$ %s\n%v", line, err)
		}
		s.Set(name, string(out))
		return "", 0
	}
	out, err := s.command(ctx, line).CombinedOutput()
	t.Logf("$ %s\n%s", line, out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatalf("$ %s\n%v\n%s", line, err, out)
	}
	return string(out), 0
}

// Watch runs a command that does not end by itself, and interrupts it when its output contains all of these texts.
func (s *Shell) Watch(t testing.TB, line string, all ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := s.command(ctx, "exec "+line)
	said := &heard{all: all, done: cancel}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	err := cmd.Run()
	t.Logf("$ %s\n%s", line, said)
	if missing := said.missing(); missing != "" {
		t.Fatalf("$ %s\n%s\n%v, and nothing of %q", line, said, err, missing)
	}
}

func (s *Shell) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.Dir, s.env, 10*time.Second
	return cmd
}

// heard collects output and calls done once it contains all texts.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
	all  []string
	done func()
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	h.text.Write(b)
	h.mu.Unlock()
	if h.missing() == "" {
		h.done()
	}
	return len(b), nil
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

func (h *heard) missing() string {
	text := h.String()
	for _, one := range h.all {
		if !strings.Contains(text, one) {
			return one
		}
	}
	return ""
}
