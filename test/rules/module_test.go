// Package rules tests what the project promises about its own source: allowed imports, forbidden file
// contents and working links in the documentation. Each failure message contains the reason for the rule.
// The checks are functions of file contents and package lists, so that tests can also show that every rule
// catches violations.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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

// ourImage matches an image of the project with its version in files for users.
var ourImage = regexp.MustCompile(`(?:stoker|stoker-io)/(?:agent|injector|receiver|hooks|\$part):([0-9][0-9A-Za-z.-]*[0-9A-Za-z])|--build-arg VERSION=([0-9][0-9A-Za-z.-]*[0-9A-Za-z])`)

// brokenVersions returns the files for users whose version differs from that of the chart.
func brokenVersions(all []file) (version string, found int, broken []string) {
	for _, f := range all {
		if f.path == "charts/stoker/Chart.yaml" {
			version = regexp.MustCompile(`(?m)^version: (.+)$`).FindStringSubmatch(string(f.content))[1]
			if app := regexp.MustCompile(`(?m)^appVersion: (.+)$`).FindStringSubmatch(string(f.content))[1]; app != version {
				broken = append(broken, fmt.Sprintf("%s: version %s, appVersion %s", f.path, version, app))
			}
		}
	}
	for _, f := range all {
		given := false
		for _, of := range []string{"README.md", "Dockerfile", "CHANGELOG.md", "docs/how-to/installation.md", "docs/start/", "kustomize/", "examples/"} {
			given = given || strings.HasPrefix(f.path, of)
		}
		if !given {
			continue
		}
		for _, m := range ourImage.FindAllStringSubmatch(string(f.content), -1) {
			found++
			if its := m[1] + m[2]; its != version {
				broken = append(broken, fmt.Sprintf("%s: %s is not the version of the chart, %s", f.path, m[0], version))
			}
		}
		if f.path == "CHANGELOG.md" && !strings.Contains(string(f.content), "\n## "+version) {
			broken = append(broken, f.path+": has no heading for "+version)
		}
	}
	return version, found, broken
}

func TestOneVersion(t *testing.T) {
	_, found, broken := brokenVersions(files(t))
	report(t, broken)
	assert.Greater(t, found, 10)
}

func TestReleaseScript(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile(filepath.Join(root, ".github", "release"))
	require.NoError(t, err)
	// setup: a clone
	for name, content := range map[string]string{
		".github/release":           string(script),
		"CHANGELOG.md":              "# Changes\n\n## 1.2.4\n\nnext\n\n## 1.2.3\n\n[this](docs/a.md)\n\n## 1.2.2\n\nlast\n",
		"charts/stoker/Chart.yaml":  "version: 1.2.3\nappVersion: 1.2.3\nsources:\n  - https://example.com/stoker\n",
		"charts/stoker/values.yaml": "image:\n  registry: registry.example.com/stoker\n",
		"dist/SHA256SUMS":           "1a  crds.yaml\n",
		"digests.txt":               "registry.example.com:5000/stoker/agent:1.2.3@sha256:2b\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, ".github", "release"), args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct{ args, want string }{
		{"check v1.2.3", ""},
		{"registry", "registry.example.com/stoker\n"},
		{"subjects digests.txt", "1a  crds.yaml\n2b  registry.example.com:5000/stoker/agent\n"},
	} {
		t.Run(c.args, func(t *testing.T) {
			out, err := run(strings.Fields(c.args)...)
			require.NoError(t, err, out)
			assert.Equal(t, c.want, out)
		})
	}
	notes, err := run("notes", "digests.txt")
	require.NoError(t, err, notes)
	assert.Regexp(t, `(?s)^\n\[this\]\(https://example.com/stoker/blob/v1.2.3/docs/a.md\)\n.*agent:1.2.3@sha256:2b\n.*make reproduce`, notes)
	assert.NotRegexp(t, "next|last", notes)
	out, err := run("check", "v1.2.4")
	assert.Error(t, err)
	assert.Contains(t, out, "tag v1.2.3")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("## 1.2.3, not released yet\n"), 0o600))
	out, err = run("check", "v1.2.3")
	assert.Error(t, err)
	assert.Contains(t, out, "no heading")
}
