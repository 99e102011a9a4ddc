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

// commandTimeout is the timeout of a command. The longest one takes a tenth of it.
const commandTimeout = 3 * time.Minute

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
	// By default, a program built with -race sleeps for a second at exit.
	own := []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0"}
	return &Shell{Dir: dir, env: append(own, env...)}
}

// Set sets an environment variable.
func (s *Shell) Set(name, value string) { s.env = append(s.env, name+"="+value) }

// Type runs a command that must succeed, and returns its output.
func (s *Shell) Type(t testing.TB, line string) string {
	t.Helper()
	output, code := s.Try(t, line)
	if code != 0 {
		t.Fatalf("$ %s\n%s\nexit code %d", line, output, code)
	}
	return output
}

// Try runs a command, and returns its output and exit code. A line that assigns a variable with a name in capitals, such as
// TOKEN=$(date), sets the variable for the following commands and has no output.
func (s *Shell) Try(t testing.TB, line string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	if name, _, ok := strings.Cut(line, "="); ok && assignOnly.MatchString(line) {
		out, err := s.command(ctx, line+" || exit\nprintf %s \"$"+name+"\"").Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return string(exit.Stderr), exit.ExitCode()
		}
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

// Watch runs a command that does not end by itself, and interrupts it when its output contains all texts. The test fails if
// one is missing after commandTimeout.
func (s *Shell) Watch(t testing.TB, line string, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := s.command(ctx, "exec "+line)
	output := &outputWatcher{wanted: texts, done: cancel}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	err := cmd.Run()
	t.Logf("$ %s\n%s", line, output)
	if missing := output.missing(); missing != "" {
		t.Fatalf("$ %s\n%s\n%v; the output lacks %q", line, output, err, missing)
	}
}

func (s *Shell) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.Dir, s.env, 10*time.Second
	return cmd
}

// outputWatcher collects output and calls done when it contains all wanted texts.
type outputWatcher struct {
	mu     sync.Mutex
	text   bytes.Buffer
	wanted []string
	done   func()
}

func (w *outputWatcher) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.text.Write(b)
	w.mu.Unlock()
	if w.missing() == "" {
		w.done()
	}
	return len(b), nil
}

func (w *outputWatcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// missing returns the first wanted text that the output lacks, or "".
func (w *outputWatcher) missing() string {
	text := w.String()
	for _, wanted := range w.wanted {
		if !strings.Contains(text, wanted) {
			return wanted
		}
	}
	return ""
}
