//go:build linux

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/control"
)

func TestConfigurationsAreWellFormed(t *testing.T) {
	values := map[string]string{
		"Dir": "/d", "Run": "/r", "Socket": "/r/s", "Plugins": "/p", "Bridge": "b", "PodCIDR": podCIDR(2), "Address": address(2),
		"PKI": "/k", "Name": Name(2), "CgroupRoot": cgroupRoot(2), "DNS": control.ServiceDNS,
	}
	entries, err := files.ReadDir("files")
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		to := filepath.Join(t.TempDir(), e.Name())
		require.NoError(t, render(e.Name(), to, values))
		content, err := os.ReadFile(to)
		require.NoError(t, err)
		assert.NotContains(t, string(content), "{{", e.Name())
		switch filepath.Ext(e.Name()) {
		case ".conflist":
			assert.True(t, json.Valid(content), e.Name())
		case ".yaml":
			for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
				var document map[string]any
				err := decoder.Decode(&document)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err, e.Name())
				assert.NotEmpty(t, document["kind"], e.Name())
			}
		}
	}
	assert.ErrorContains(t, render("kubelet.yaml", filepath.Join(t.TempDir(), "x"), map[string]string{}), "Address", "the error must name the missing value")
}

func TestConfigurationsNameBuiltImages(t *testing.T) {
	for name, image := range map[string]string{"containerd.toml": build.PauseImage, "coredns.yaml": build.CoreDNSImage} {
		content, err := files.ReadFile("files/" + name)
		require.NoError(t, err)
		assert.Contains(t, string(content), image, name)
	}
	content, err := files.ReadFile("files/coredns.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(content), "clusterIP: "+control.ServiceDNS+"\n")
}

func TestVolumePath(t *testing.T) {
	dir := t.TempDir()
	n := New(1, t.TempDir(), dir, nil)
	path, err := n.Volume("data")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "node1", "volumes", "data"), path)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o777, info.Mode().Perm(), "every user of a pod must be able to write")
	for _, name := range []string{"", "../x", "/x"} {
		t.Run(name, func(t *testing.T) {
			_, err := n.Volume(name)
			assert.ErrorContains(t, err, "want a name", name)
		})
	}
}

func TestMissingPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Install(t.Context(), io.Discard)
	if os.Geteuid() != 0 {
		assert.ErrorContains(t, err, "needs root")
		return
	}
	require.ErrorContains(t, err, "has no apt-get")
	assert.ErrorContains(t, err, "containerd runc")
}

func TestNodeCountIsBounded(t *testing.T) {
	assert.NoError(t, Check(1))
	assert.NoError(t, Check(MaxNodes))
	assert.Error(t, Check(0))
	assert.Error(t, Check(MaxNodes+1))
}

// The machine may have its own kube-proxy: Restore must not delete its tables.
func TestRestoreWithoutRecord(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // every program that Restore runs fails
	assert.NoError(t, Machine{File: filepath.Join(t.TempDir(), "machine.json")}.Restore(t.Context()))
}
