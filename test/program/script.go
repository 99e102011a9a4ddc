package program

import (
	"os"
	"syscall"
	"testing"
)

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
