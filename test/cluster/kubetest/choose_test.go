//go:build linux

package kubetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/program"
)

// script writes a program to a directory of the PATH.
func script(t *testing.T, dir, name, text string) string {
	path := filepath.Join(dir, name)
	program.Script(t, path, "#!/bin/sh\n"+text)
	return path
}

func TestKindNeedsDaemonAndImage(t *testing.T) {
	const daemon = `[ "$1" = info ] && echo 28.2.2 && exit; `
	const image = `[ "$1 $2" = "image inspect" ] && [ "$5" = kindest/node:v1 ] && echo sha256:1 && exit; `
	for name, c := range map[string]struct{ docker, refused string }{
		"no docker":                 {"", "executable file not found"},
		"client without daemon":     {"echo Cannot connect >&2; exit 1", "Cannot connect"},
		"silent client":             {"exit 0", "no answer"},
		"daemon without node image": {daemon + "echo No such image >&2; exit 1", "docker image inspect --format {{.Id}} kindest/node:v1: exit status 1: No such image"},
		"daemon with node image":    {daemon + image + "exit 1", ""},
		"daemon with another image": {daemon + `[ "$5" = other ] && exit; echo nothing >&2; exit 1`, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.docker != "" {
				script(t, dir, "docker", c.docker)
			}
			t.Setenv("PATH", dir)
			built := false
			kind, err := usableKind(t.Context(), func(context.Context) (string, error) {
				built = true
				return script(t, dir, "kind", `[ "$1" = image ] && echo kindest/node:v1`), nil
			})
			if c.refused != "" {
				require.ErrorContains(t, err, c.refused)
				if c.docker == "" {
					assert.False(t, built, "without docker, nothing may be built")
				}
				return
			}
			require.NoError(t, err)
			assert.Equal(t, keeper.Kind{Program: filepath.Join(dir, "kind"), Image: "kindest/node:v1"}, kind)
		})
	}
}

func TestGivenClusterTakesPrecedence(t *testing.T) {
	cache, err := build.Open(build.Cache{Dir: t.TempDir()})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	t.Setenv(KubeconfigVariable, path)
	_, err = choose(t.Context(), cache, 1)
	require.ErrorContains(t, err, KubeconfigVariable)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	made, err := choose(t.Context(), cache, 1)
	require.NoError(t, err)
	assert.Equal(t, path, made.given)

	var given givenNodes
	assert.ErrorContains(t, given.load(t.Context(), "x"), ImagesVariable)
	t.Setenv(ImagesVariable, "1")
	assert.NoError(t, given.load(t.Context(), "x"))
	_, err = given.host(t.Context())
	require.ErrorContains(t, err, HostVariable)
	t.Setenv(HostVariable, "192.0.2.7")
	address, err := given.host(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.7", address)
}
