package kargo

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

//go:generate go test -run TestChartAndKustomizeShipTheseFiles -count=1 . -update

var update = flag.Bool("update", false, "copy the files of this folder to the chart and to kustomize")

const component = `# Written by "go generate ./hooks/kargo".
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources:
`

// shipped returns the content of all copies by their path.
func shipped(t *testing.T) map[string][]byte {
	t.Helper()
	copies := map[string][]byte{}
	for from, to := range map[string]string{".": ".", "analysis": "analysis"} {
		files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		slices.Sort(files)
		list := component
		for _, file := range files {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, root := range []string{"../../charts/stoker/files/kargo", "../../kustomize/components/kargo"} {
				copies[filepath.Join(root, to, filepath.Base(file))] = b
			}
			list += "- " + filepath.Base(file) + "\n"
		}
		copies[filepath.Join("../../kustomize/components/kargo", to, "kustomization.yaml")] = []byte(list)
	}
	return copies
}

func TestChartAndKustomizeShipTheseFiles(t *testing.T) {
	copies := shipped(t)
	for path, want := range copies {
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, want, 0o644))
		}
		have, err := os.ReadFile(path)
		require.NoError(t, err, "run go generate ./hooks/kargo")
		assert.True(t, bytes.Equal(want, have), "%s is not what it is made from: run go generate ./hooks/kargo", path)
	}
	for _, root := range []string{"../../charts/stoker/files/kargo", "../../kustomize/components/kargo"} {
		for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
			there, err := filepath.Glob(filepath.Join(root, pattern))
			require.NoError(t, err)
			for _, path := range there {
				assert.Contains(t, copies, path, "made from nothing")
			}
		}
	}
	for _, b := range copies {
		assert.LessOrEqual(t, strings.Count(string(b), "\n---"), 0, "the chart takes one object a file")
	}
}
