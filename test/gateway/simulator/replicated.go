package simulator

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// readReplicated reads the files that a pair copies.
func (d *Data) readReplicated() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since its directory was read
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && !containsReplicated(name) {
				return fs.SkipDir
			}
			return nil
		case !isReplicated(name) || !d.partOfResource(name):
			return nil
		}
		files[name], err = datadir.Read(d.root, name)
		return err
	})
	return files, err
}

// containsReplicated reports whether a pair copies a directory, or one below it.
func containsReplicated(dir string) bool {
	return dir == "config" || dir == datadir.ResourcesDir || dir == datadir.ProjectsDir || isReplicated(dir+"/x")
}

// isReplicated reports whether a pair copies the tree of a file: the projects, and all collections except external and
// local.
func isReplicated(name string) bool {
	if strings.HasPrefix(name, datadir.ProjectsDir+"/") {
		return !strings.Contains(name, "/.stoker/")
	}
	rest, ok := strings.CutPrefix(name, datadir.ResourcesDir+"/")
	collection, _, deep := strings.Cut(rest, "/")
	return ok && deep && collection != "external" && collection != "local"
}

// partOfResource reports whether a file belongs to a resource. With Unknowns.ReplicateAllFiles every file does.
func (d *Data) partOfResource(name string) bool {
	base := path.Base(name)
	if d.opts.Unknowns.ReplicateAllFiles || strings.HasPrefix(name, datadir.BlobDir+"/") ||
		slices.Contains([]string{resource.File, resource.UnaryFile, "project.json", "config-mode.json"}, base) {
		return true
	}
	dir := path.Dir(name)
	if datadir.Exists(d.root, path.Join(dir, resource.UnaryFile)) {
		return true
	}
	raw, err := datadir.Read(d.root, path.Join(dir, resource.File))
	if err != nil {
		return false
	}
	doc, err := ordered.Parse(raw)
	list, _ := ordered.Dig(doc, "files").(ordered.Array)
	return err == nil && slices.Contains(list, ordered.Value(base))
}
