//go:build linux

package e2e

import (
	"crypto/rand"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/gateway/simulator"
)

// ignitionData is the data directory in the image, the same as in the official one.
const ignitionData = "/usr/local/bin/ignition/data"

// startGateway is the script of the image's entrypoint. It prints the projects that exist before the gateway starts, for
// projectsAtStart. --token-out reads an existing token and writes the file again, so it needs a writable copy.
const startGateway = `cp /token /tmp/token && chmod 600 /tmp/token && echo at the start: $(ls ` + ignitionData + `/projects 2>/dev/null) &&
exec /gateway --data ` + ignitionData + ` --listen :8088 --admin :9088 --token-out /tmp/token "$@"`

// randomSecret returns a value that occurs nowhere else.
func randomSecret() string { return strings.ToLower(rand.Text()) }

// gatewayImage returns a simulated gateway in the layout of the official image. It has a seeded data directory for init
// containers to copy, a shell for their scripts, and an entrypoint that accepts further arguments.
func gatewayImage(t *testing.T, token string) image.Image {
	busybox, err := exec.LookPath("busybox")
	require.NoError(t, err)
	i := image.Image{
		Ref: gatewayImageRef, User: "2003:2003",
		Entrypoint: []string{"/bin/sh", "-c", startGateway, "gateway"},
		Files: []image.File{
			{Path: "/bin/busybox", From: busybox},
			{Path: "/token", Content: []byte(token), Mode: 0o444},
		},
	}
	for _, name := range []string{"sh", "cp", "touch", "chmod", "sleep", "cat", "ls", "sed"} {
		i.Files = append(i.Files, image.File{Path: "/bin/" + name, Link: "busybox"})
	}
	data := t.TempDir()
	g, err := simulator.Start(simulator.Options{Data: data, Token: token})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		i.Files = append(i.Files, image.File{Path: filepath.Join(ignitionData, name), From: path, Mode: 0o644, UID: 2003, GID: 2003})
		return nil
	}))
	return i
}
