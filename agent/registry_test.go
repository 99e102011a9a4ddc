package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/ociregistry"
)

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
