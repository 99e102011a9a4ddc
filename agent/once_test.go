package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

const onceSpec = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec:
  git: {repo: "file:///does/not/exist", ref: main}
  sync: {profiles: {default: {mappings: [{source: a, destination: projects}]}}}
`

// once runs the agent with --once, and returns its exit code and the last line of its output.
func once(t *testing.T, spec string, more ...string) (code int, last string) {
	t.Helper()
	dir := t.TempDir()
	file, data := filepath.Join(dir, "gatewaysync.yaml"), filepath.Join(dir, "data")
	require.NoError(t, os.WriteFile(file, []byte(spec), 0o600))
	require.NoError(t, os.Mkdir(data, 0o700))
	var out bytes.Buffer
	args := append([]string{"--file", file, "--data-dir", data, "--gateway-name", "g", "--allow-unseeded", "--once"}, more...)
	code = run(t.Context(), args, nil, &out, &out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return code, lines[len(lines)-1]
}

func TestOnceEndsWithReason(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		says []string
	}{
		"duplicate key": {onceSpec + "  paused: true\n  paused: false\n", []string{"ProfilesInvalid: ", `key "paused" is there twice`}},
		"no repository": {onceSpec, []string{"GitUnreachable: ", "/does/not/exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, last := once(t, c.spec)
			assert.Equal(t, daemon.ExitFailed, code)
			assert.True(t, strings.HasPrefix(last, "agent: "), last)
			for _, words := range c.says {
				assert.Contains(t, last, words)
			}
		})
	}
}

// A gateway that does not end its start is the reason in the last line.
func TestOnceStartingGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, token, file := filepath.Join(dir, "data"), filepath.Join(dir, "token"), filepath.Join(dir, "gatewaysync.yaml")
	require.NoError(t, os.Mkdir(data, 0o700))
	gw, err := simulator.Start(simulator.Options{Data: data})
	require.NoError(t, err)
	defer func() { assert.NoError(t, gw.Close()) }()
	require.NoError(t, gw.SetState(simulator.Starting))
	require.NoError(t, os.WriteFile(token, []byte(gw.Token()), 0o600))
	repo := gitserver.NewRepo(t, filepath.Join(dir, "plant.git"))
	repo.Commit("one", gitserver.Write("a/line/project.json", `{"title":"line","enabled":true,"inheritable":false,"parent":""}`))
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(onceSpec, "/does/not/exist", repo.Dir, 1)+`  progressDeadline: 1s
  gateway: {api: {secretName: gateway, secretKey: apiKey}}
`), 0o600))
	var out, talk bytes.Buffer
	code := run(t.Context(), []string{"--file", file, "--data-dir", data, "--gateway-name", "g", "--once", "--gateway-url", gw.URL(), "--secret", "gateway/apiKey=" + token}, nil, &out, &talk)
	lines := strings.Split(strings.TrimSpace(talk.String()), "\n")
	assert.Equal(t, exitTimeout, code, talk.String())
	assert.Regexp(t, `^agent: .*WaitingForGateway: .*STARTING`, lines[len(lines)-1])
}

func TestExitCodeOfAgent(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		err  error
		code int
	}{"stopped": {nil, daemon.ExitDone}, "a failed loop": {refused, daemon.ExitFailed}} {
		t.Run(name, func(t *testing.T) {
			code, err := serveAndRun(t.Context(), nil, func(context.Context) error { return c.err })
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.code, code)
		})
	}
}

// A container often has a read-only root. The error names the setting that helps.
func TestUnwritableDirectories(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(nowhere, nil, 0o600))
	t.Run("dry run", func(t *testing.T) {
		t.Setenv("TMPDIR", filepath.Join(nowhere, "tmp"))
		var out bytes.Buffer
		file := filepath.Join(filepath.Dir(nowhere), "gatewaysync.yaml")
		require.NoError(t, os.WriteFile(file, []byte(onceSpec), 0o600))
		code := run(t.Context(), []string{"--file", file, "--data-dir", filepath.Dir(nowhere), "--gateway-name", "g", "--once", "--dry-run"}, nil, &out, &out)
		assert.Equal(t, daemon.ExitFailed, code)
		assert.Contains(t, out.String(), "set TMPDIR to a directory that can be written")
	})
	t.Run("cache", func(t *testing.T) {
		code, last := once(t, onceSpec, "--repo-dir", filepath.Join(nowhere, "objects"))
		assert.Equal(t, daemon.ExitFailed, code)
		assert.Contains(t, last, "--repo-dir sets another directory")
	})
}

// F33: a gateway syncs the artifacts of a registry as it syncs commits: new pushes, drift, and back to an earlier digest. What a hostile
// registry serves leaves the gateway as it is.
func TestOnceRegistry(t *testing.T) {
	dir := t.TempDir()
	data, token, file := filepath.Join(dir, "data"), filepath.Join(dir, "token"), filepath.Join(dir, "gatewaysync.yaml")
	require.NoError(t, os.Mkdir(data, 0o700))
	gw, err := simulator.Start(simulator.Options{Data: data})
	require.NoError(t, err)
	defer func() { assert.NoError(t, gw.Close()) }()
	require.NoError(t, os.WriteFile(token, []byte(gw.Token()), 0o600))
	registry := ociregistry.Start(t)
	push := func(title string) string {
		return registry.Push("stable", ociregistry.Files(t, map[string]string{
			"a/line/project.json": fmt.Sprintf(`{"title":%q,"enabled":true,"inheritable":false,"parent":""}`, title), "README.md": "not mapped",
		}), nil)
	}
	project := filepath.Join(data, "projects/line/project.json")
	sync := func(ref string) (code int, last string) {
		spec := strings.Replace(onceSpec, `"file:///does/not/exist", ref: main`, fmt.Sprintf("%q, ref: %q", registry.Repo(), ref), 1)
		spec = strings.Replace(spec, "sync: {", "sync: {defaults: {driftPolicy: repair}, ", 1)
		require.NoError(t, os.WriteFile(file, []byte(spec+"  gateway: {api: {secretName: gateway, secretKey: apiKey}}\n"), 0o600))
		var out, talk bytes.Buffer
		code = run(t.Context(), []string{"--file", file, "--data-dir", data, "--gateway-name", "g", "--once", "--gateway-url", gw.URL(), "--secret", "gateway/apiKey=" + token}, nil, &out, &talk)
		return code, talk.String()
	}
	runs := func(title, ref string) {
		t.Helper()
		code, said := sync(ref)
		require.Equal(t, daemon.ExitDone, code, said)
		content, err := os.ReadFile(project)
		require.NoError(t, err)
		assert.Contains(t, string(content), title)
		assert.NotNil(t, gw.Data.Loaded("projects/line"), "the gateway has loaded the project")
	}
	first := push("one")
	runs("one", "stable")
	push("two")
	runs("two", "stable")
	require.NoError(t, os.WriteFile(project, []byte(`{"title":"by hand","enabled":true,"inheritable":false,"parent":""}`), 0o600))
	runs("two", "stable")
	runs("one", first)

	for name, h := range map[string]tar.Header{
		"a path that leaves the folder": {Name: "a/../../../etc/passwd", Typeflag: tar.TypeReg, Size: 1},
		"a hard link":                   {Name: "a/line/project.json", Linkname: "/etc/passwd", Typeflag: tar.TypeLink},
		"a symbolic link":               {Name: "a/line/project.json", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
	} {
		t.Run(name, func(t *testing.T) {
			registry.Push("hostile", ociregistry.Layer(t, []tar.Header{h}, func(tar.Header) string { return "x" }), nil)
			code, said := sync("hostile")
			assert.Equal(t, daemon.ExitFailed, code, said)
			content, err := os.ReadFile(project)
			require.NoError(t, err)
			assert.Contains(t, string(content), "one")
		})
	}
}
