package rules

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
