package program

import (
	"os"
	"syscall"
	"testing"
)

// Script writes a program of a few lines, to be run at once. A process that another goroutine started while the file is open for
// writing would keep it so for a moment, and the script could not be run: text file busy (golang/go#22315).
func Script(t testing.TB, file, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}
