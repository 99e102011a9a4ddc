package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

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
