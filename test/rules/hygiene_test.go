package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// Trust F3: This version of Go fixed an escape from os.Root.
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
