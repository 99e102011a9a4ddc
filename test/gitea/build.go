package gitea

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Version is the version of Gitea. Later versions require modules that are not published.
const Version = "1.26.0"

// built has the paths of the program and of the directory with the files that it reads at run time.
type built struct{ program, static string }

// build builds Gitea from its module into the user's cache directory. It does so once for each version of Go. A build takes
// about three minutes and needs a C compiler, for SQLite.
func build(ctx context.Context) (built, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return built{}, err
	}
	parent := filepath.Join(cache, "stoker-gitea")
	dir := filepath.Join(parent, Version+"-"+runtime.Version())
	b := built{filepath.Join(dir, "gitea"), filepath.Join(dir, "src")}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return b, err
	}
	lock, err := os.OpenFile(filepath.Join(parent, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return b, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.program); err == nil {
		return b, nil
	}
	temp, err := os.MkdirTemp(parent, "build-")
	if err != nil {
		return b, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := compile(ctx, temp); err != nil {
		return b, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return b, err
	}
	return b, os.Rename(temp, dir)
}

// compile builds the program in dir. Gitea must be built with the versions of its own go.mod, not with ours. So it is built as
// the main module, from a copy, because modules in Go's cache are read-only.
func compile(ctx context.Context, dir string) error {
	get := exec.CommandContext(ctx, "go", "mod", "download", "-json", "code.gitea.io/gitea@v"+Version)
	get.Dir, get.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw=false")
	out, err := get.Output()
	if err != nil {
		return fmt.Errorf("download Gitea %s: %w: %s", Version, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	source := filepath.Join(dir, "src")
	if err := os.CopyFS(source, os.DirFS(module.Dir)); err != nil { //nolint:forbidigo // a module has no symbolic links
		return err
	}
	compiler := exec.CommandContext(ctx, "go", "build", "-tags", "sqlite sqlite_unlock_notify", "-ldflags", "-s -w", "-o", filepath.Join(dir, "gitea"), ".")
	compiler.Dir, compiler.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=1")
	if out, err := compiler.CombinedOutput(); err != nil {
		return fmt.Errorf("build Gitea %s: %w: %s", Version, err, out)
	}
	// Of the source, keep only the folders that Gitea reads at run time.
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); n != "templates" && n != "options" && n != "public" {
			if err := os.RemoveAll(filepath.Join(source, n)); err != nil {
				return err
			}
		}
	}
	return nil
}
