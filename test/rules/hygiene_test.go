// Package rules tests what the project promises about its own source, such as allowed imports, forbidden file
// contents, language, and working links in the documentation. Each failure message contains the reason for the rule.
// The checks are functions of file contents and package lists, so that tests can also show that a rule
// catches violations.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
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
	"go.yaml.in/yaml/v3"
)

const (
	maxFileBytes = 1 << 20
	maxGoLines   = 500
)

var generated = regexp.MustCompile(`(?m)^(// Code generated|# Code generated|# Generated) .* DO NOT EDIT\.$`)

// words are patterns that no file may contain. They are split so that this file does not contain them
// either. A pattern is tried only on lines that contain one of its needles.
var words = []struct {
	needles []string
	pattern *regexp.Regexp
	why     string
}{
	{
		[]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"},
		regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"open work belongs in an issue, not a comment",
	},
	{
		[]string{"/ho" + "me/", "/ro" + "ot/", "/wo" + "rk/"},
		regexp.MustCompile(`(^|[^\w.\-])/(ho` + `me|ro` + `ot|wo` + `rk)/[\w.]`),
		"the path exists on one machine only",
	},
	{
		[]string{"golang" + ".org", "npm" + "js", "python" + "hosted", "pypi" + ".org", "ruby" + "gems", "crates" + ".io", "maven" + ".org"},
		regexp.MustCompile(`(proxy|sum|index)\.golang` + `\.org|registry\.npm` + `js|(files\.python` + `hosted|pypi)` + `\.org|ruby` + `gems\.org|(index|static)\.crates` + `\.io|maven` + `\.org`),
		"the source of packages is a setting of the machine",
	},
	{
		[]string{"GO" + "PROXY"},
		regexp.MustCompile(`GO` + `PROXY\s*[:=]\s*["']?(http|off|direct)`),
		"the source of packages is a setting of the machine",
	},
	{
		[]string{"<<<<<<" + "<", "======" + "=", ">>>>>>" + ">"},
		regexp.MustCompile(`^(<{7} |={7}$|>{7} )`),
		"unfinished merge",
	},
}

// wordIn returns why a line is not allowed, or "".
func wordIn(line string) string {
	for _, w := range words {
		for _, needle := range w.needles {
			if strings.Contains(line, needle) && w.pattern.MatchString(line) {
				return w.why
			}
		}
	}
	return ""
}

// brokenHygiene returns violations that concern a file as a whole.
func brokenHygiene(f file) []string {
	var broken []string
	if len(f.content) > maxFileBytes {
		broken = append(broken, fmt.Sprintf("%s: %d bytes; a file of the project has at most %d", f.path, len(f.content), maxFileBytes))
	}
	if !f.isText() {
		return broken
	}
	lines := strings.Split(string(f.content), "\n")
	if f.isGo() && len(lines) > maxGoLines && !generated.Match(f.content) {
		broken = append(broken, fmt.Sprintf("%s: %d lines; a file is one thought and at most %d lines", f.path, len(lines), maxGoLines))
	}
	for i, line := range lines {
		bad := func(why string) { broken = append(broken, fmt.Sprintf("%s:%d: %s: %.80q", f.path, i+1, why, line)) }
		if why := wordIn(line); why != "" {
			bad(why)
		}
		if f.isSample() {
			continue
		}
		if strings.HasSuffix(line, "\r") {
			bad("CRLF")
		} else if strings.TrimRight(line, " \t") != line {
			bad("white space at the end of the line")
		}
		if isYAML(f.path) && strings.Contains(line, "\t") {
			bad("a tab in YAML")
		}
	}
	return broken
}

func isYAML(path string) bool {
	return strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml")
}

func TestFilesAreClean(t *testing.T) {
	for _, f := range files(t) {
		report(t, brokenHygiene(f))
	}
}

func TestLicense(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "Apache License")
	assert.Contains(t, string(text), "Version 2.0")
}

// F3: Go 1.26.5 fixed an escape from os.Root.
func TestModuleGoVersion(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	var mod struct {
		Go               string
		Replace, Exclude []any
		Require          []struct{ Path string }
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	assert.GreaterOrEqual(t, version.Compare("go"+mod.Go, "go1.26.5"), 0, "go %s", mod.Go)
	assert.Empty(t, mod.Replace, "a replaced module builds from another source than it names")
	assert.Empty(t, mod.Exclude)
	for _, r := range mod.Require {
		heavy := regexp.MustCompile(`^(k8s\.io/kubernetes|github\.com/(coredns|argoproj)/.*|sigs\.k8s\.io/(kind|kustomize/kustomize/.*))$`)
		assert.NotRegexp(t, heavy, r.Path, "programs that tests start belong in nested modules")
	}
}

func TestExamplesParse(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasPrefix(f.path, "examples/") {
			continue
		}
		switch {
		case strings.Contains(f.path, "/templates/"): // rendered in test/charts and internal/configsync
		case isYAML(f.path):
			for decoder := yaml.NewDecoder(bytes.NewReader(f.content)); ; {
				var document any
				err := decoder.Decode(&document)
				if errors.Is(err, io.EOF) {
					break
				}
				if !assert.NoError(t, err, f.path) {
					break
				}
			}
		case strings.HasSuffix(f.path, ".json"):
			assert.True(t, json.Valid(f.content), "%s is not JSON", f.path)
		}
	}
}

// githubConfig has what the rules check of workflows and of the configuration of Dependabot.
type githubConfig struct {
	Permissions any
	Jobs        map[string]struct {
		Permissions any
		Uses        string
		Steps       []struct{ Uses, Run string }
	}
	Updates []struct {
		Ecosystem   string `yaml:"package-ecosystem"`
		Directories []string
	}
}

var (
	withVersion = regexp.MustCompile(`@(v\d+(\.\d+)*|[0-9a-f]{40})$`)
	makeCommand = regexp.MustCompile(`\bmake ([a-z0-9-]+)`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// brokenWorkflows returns the violations in workflows, and the modules and packages that Dependabot does not update.
func brokenWorkflows(all []file) (broken []string) {
	targets, manifests := map[string]bool{}, map[string][]string{}
	for _, f := range all {
		if f.path == "Makefile" {
			for _, m := range makeTarget.FindAllSubmatch(f.content, -1) {
				targets[string(m[1])] = true
			}
		}
		if ecosystem := map[string]string{"go.mod": "gomod", "package.json": "npm"}[path.Base(f.path)]; ecosystem != "" {
			manifests[ecosystem] = append(manifests[ecosystem], path.Join("/", path.Dir(f.path)))
		}
	}
	updated := map[string][]string{}
	for _, f := range all {
		if !strings.HasPrefix(f.path, ".github/") || !isYAML(f.path) {
			continue
		}
		var config githubConfig
		bad := func(format string, args ...any) { broken = append(broken, f.path+": "+fmt.Sprintf(format, args...)) }
		if err := yaml.Unmarshal(f.content, &config); err != nil {
			bad("%v", err)
		}
		for _, u := range config.Updates {
			updated[u.Ecosystem] = append(updated[u.Ecosystem], u.Directories...)
		}
		for name, job := range config.Jobs {
			none := config.Permissions == nil && job.Permissions == nil
			if none || config.Permissions == "write-all" || job.Permissions == "write-all" {
				bad("job %s: name the permissions that it needs", name)
			}
			for _, s := range append(job.Steps, struct{ Uses, Run string }{Uses: job.Uses}) {
				if s.Uses != "" && !withVersion.MatchString(s.Uses) {
					bad("job %s: %s has no version", name, s.Uses)
				}
				if strings.Count(strings.TrimSpace(s.Run), "\n") >= 3 {
					bad("job %s: a step of more than 3 lines belongs in a script or the Makefile, so that a developer can run it: %.60q", name, s.Run)
				}
				for _, m := range makeCommand.FindAllStringSubmatch(s.Run, -1) {
					if !targets[m[1]] {
						bad("job %s: the Makefile has no target %s", name, m[1])
					}
				}
			}
		}
	}
	for ecosystem, want := range manifests {
		if got := updated[ecosystem]; !slices.Equal(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))) {
			broken = append(broken, fmt.Sprintf(".github/dependabot.yaml: %s has %v, but there are %v", ecosystem, got, want))
		}
	}
	return broken
}

func TestWorkflows(t *testing.T) { report(t, brokenWorkflows(files(t))) }

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

// room returns the path of a package inside the module, which the rules call its room, or "" for a package of another module.
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

// brokenVersions returns the version of the chart, how often the files for users name a version, and the violations: a file that
// names another version, and a CHANGELOG.md without a heading for the version.
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
