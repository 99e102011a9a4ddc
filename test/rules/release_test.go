package rules

import (
	"fmt"
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

func TestVersionRules(t *testing.T) {
	check := func(text string) []string {
		version, _, broken := brokenVersions([]file{{"charts/stoker/Chart.yaml", []byte("name: stoker\nversion: 1.2.3\nappVersion: 1.2.3\n")}, {"README.md", []byte(text)}})
		require.Equal(t, "1.2.3", version)
		return broken
	}
	assert.Empty(t, check("docker build --tag registry.example.com/stoker/$part:1.2.3 --build-arg VERSION=1.2.3 ."))
	assert.Len(t, check("docker build --tag registry.example.com/stoker/$part:1.2.2 --build-arg VERSION=1.2.4 ."), 2)
	assert.Len(t, check("image: ghcr.io/stoker-io/agent:1.2.30"), 1)
}
