// Package rules tests what the project promises about its own source: allowed imports, forbidden file
// contents and working links in the documentation. Each failure message contains the reason for the rule.
// The checks are functions of file contents and package lists, so that tests can also show that every rule
// catches violations.
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

// root is the root directory of the module relative to this package.
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
			continue // deleted, but the deletion is not committed yet
		}
		if err != nil {
			return nil, err
		}
		all = append(all, file{path, content})
	}
	return all, nil
})

// listFiles asks git for the files. An unpacked source archive has no git, so there every file counts.
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
	// go test does not track the output of git as an input. It tracks the index, so an added file
	// invalidates a cached result.
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

// pkg is the output of go list for a package of the module.
type pkg struct {
	ImportPath, Name string
	Imports, Deps    []string // of the package itself, without its tests

	TestImports, XTestImports []string // of its tests, and of those in its package with suffix _test
}

// room returns the path of a package inside the module, or "" for a package of another module.
func room(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

// forTests reports whether a room does not ship: test/ and packages such as plantest.
func forTests(room string) bool {
	return within(room, []string{"test"}) || strings.HasSuffix(path.Base(room), "test")
}

// packages returns every package of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listPackages()
	require.NoError(t, err)
	require.Greater(t, len(all), 5, "this is not the whole module")
	return all
}

var listPackages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

// report fails the test with every violation.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}
