package desired

import (
	"slices"

	"stoker.io/stoker/agent/plan/relpath"
)

// findMounts records the mounts at which the commit has content, so that a plan reports them even if it does not
// compare their directories.
func (d *Tree) findMounts() error {
	for _, path := range d.rules.Mounts.Paths() {
		if _, err := d.children(relpath.Parent(path), d.listGit); err != nil {
			return err
		}
	}
	return nil
}

// leave records that the commit's content at a mount is not synced.
func (d *Tree) leave(path string) {
	if slices.Contains(d.mounted, path) {
		return
	}
	d.mounted = append(d.mounted, path)
	d.warn("%s is not synced: the gateway's container has a mount there, which hides the file from git; "+
		"exclude the path, or remove it from git", path)
}
