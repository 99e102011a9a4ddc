// Package rules holds what the project promises about its own source: which room may know which, what no file may
// contain, that the documentation's links lead somewhere. Each rule says why in its failure message. The checks are
// functions of file contents and package lists, so that every rule is also shown to catch what it forbids.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "stoker.io/stoker"

// root is the module's directory, seen from this package.
var root = filepath.Join("..", "..")

// file is a file of the project. Its path is slash separated and relative to the root.
type file struct {
	path    string
	content []byte
}

func (f file) isGo() bool { return strings.HasSuffix(f.path, ".go") }
func (f file) isTest() bool {
	return strings.HasSuffix(f.path, "_test.go") || strings.HasPrefix(f.path, "test/")
}
func (f file) isText() bool   { return !bytes.Contains(f.content[:min(len(f.content), 8000)], []byte{0}) }
func (f file) isSample() bool { return slices.Contains(strings.Split(f.path, "/"), "testdata") }

// files returns every file that is, or would be, under version control.
func files(t *testing.T) []file {
	t.Helper()
	all, err := readFiles()
	require.NoError(t, err)
	require.Greater(t, len(all), 20, "this is not the whole project")
	return all
}

var readFiles = sync.OnceValues(func() ([]file, error) {
	paths, err := listFiles()
	if err != nil {
		return nil, err
	}
	var all []file
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and the deletion is not committed yet
		}
		if err != nil {
			return nil, err
		}
		all = append(all, file{path, content})
	}
	return all, nil
})

// listFiles asks git; an unpacked source archive has no git, and there every file counts.
func listFiles() ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		var paths []string
		err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && !strings.HasPrefix(path, "bin/") {
				paths = append(paths, path)
			}
			return err
		})
		return paths, err
	}
	// What git answers is no input that go test knows of; the index is, and so an added file ends a cached result.
	_, _ = os.Stat(filepath.Join(root, ".git", "index"))
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	paths := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// pkg is what go list says of a package of the module.
type pkg struct {
	ImportPath, Name string
	Imports, Deps    []string // of the package itself, without its tests
}

// room is the package's path inside the module; "" for a package of somebody else.
func room(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

// forTests tells the rooms that do not ship: test/ and packages such as plantest.
func forTests(room string) bool {
	return within(room, []string{"test"}) || strings.HasSuffix(path.Base(room), "test")
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,Deps", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all = append(all, p)
	}
	require.Greater(t, len(all), 5, "this is not the whole module")
	return all
}

// report fails the test with every violation.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}
