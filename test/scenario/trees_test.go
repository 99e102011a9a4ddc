package scenario

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/trees"
)

// tree is a real Ignition tree.
type tree struct {
	name, dir string
	mappings  [][2]string
}

// realTrees finds trees in STOKER_TREES: a folder with services/*/projects or services/*/config is an 8.3 tree; one with project.json is an
// 8.1 project.
func realTrees(t *testing.T) []tree {
	t.Helper()
	root := trees.Root(t)
	var list []tree
	dirs, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		services, err := filepath.Glob(filepath.Join(dir, "services", "*"))
		require.NoError(t, err)
		var m [][2]string
		for _, s := range services {
			for _, part := range []string{"projects", "config"} {
				if _, err := os.Stat(filepath.Join(s, part)); err == nil {
					m = append(m, [2]string{"services/" + filepath.Base(s) + "/" + part, part})
				}
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "project.json")); err == nil {
			for _, part := range []string{"com.inductiveautomation.vision", "ignition"} {
				m = append(m, [2]string{part, "projects/" + d.Name() + "/" + part})
			}
		}
		if len(m) > 0 {
			list = append(list, tree{d.Name(), dir, m})
		}
	}
	require.NotEmpty(t, list, "STOKER_TREES=%s holds no Ignition tree", root)
	return list
}

// emptyVolume empties the data directory, like a new volume.
func (p *plant) emptyVolume() {
	p.t.Helper()
	for _, e := range p.entries() {
		require.NoError(p.t, os.RemoveAll(filepath.Join(p.data, e)))
	}
	p.unowned = map[string]string{}
}

func (p *plant) entries() []string {
	p.t.Helper()
	list, err := os.ReadDir(p.data)
	require.NoError(p.t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// size returns the number of bytes below dir.
func size(t *testing.T, dir string) int64 {
	t.Helper()
	var n int64
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		return err
	}))
	return n
}

// importTree commits a directory byte for byte, without conversion of line ends.
func (p *plant) importTree(dir string) string {
	p.t.Helper()
	in := []string{"-C", dir, "--git-dir=" + p.repo.Dir, "--work-tree=" + dir, "-c", "core.autocrlf=false"}
	p.repo.Git(append(in, "add", "-A", "-f", ".")...)
	head := p.repo.CommitTree("import", p.repo.Git("write-tree"))
	p.repo.ForcePush(head)
	return head
}
