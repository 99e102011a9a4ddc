package plan

import (
	"slices"

	"stoker.io/stoker/agent/plan/relpath"
)

// Mounts are the paths below the data directory at which the gateway's container has mounts of its own, such as a
// Secret mounted over a placeholder file of git. The agent leaves them alone like never-touch paths. It must not rename
// or remove a name below or above such a mount either: when a mount point disappears, Linux unmounts what is mounted
// there, in the gateway's container too.
type Mounts struct {
	paths  []string // sorted, without nested ones
	folded []string // the same paths folded, because a volume may ignore case
}

// NewMounts returns the Mounts of paths relative to the data directory. It drops paths that git cannot have.
func NewMounts(paths []string) Mounts {
	var list []string
	for _, p := range paths {
		if path, err := ParsePath(p); err == nil && path != Root {
			list = append(list, path.Rel())
		}
	}
	slices.Sort(list)
	var m Mounts
	for _, p := range list {
		if m.At(p) == "" {
			m.paths, m.folded = append(m.paths, p), append(m.folded, relpath.Fold(p))
		}
	}
	return m
}

// Paths returns the mounts, sorted, without nested ones.
func (m *Mounts) Paths() []string { return m.paths }

// At returns the mount at or above path, or "".
func (m *Mounts) At(path string) string {
	return m.find(path, func(path, mount string) bool { return path == mount || relpath.Below(path, mount) })
}

// Below returns a mount below path, or "".
func (m *Mounts) Below(path string) string {
	return m.find(path, func(path, mount string) bool { return relpath.Below(mount, path) })
}

// find returns the first mount that matches path, both folded, or "".
func (m *Mounts) find(path string, match func(path, mount string) bool) string {
	if len(m.paths) == 0 {
		return ""
	}
	path = relpath.Fold(path)
	i := slices.IndexFunc(m.folded, func(mount string) bool { return match(path, mount) })
	if i < 0 {
		return ""
	}
	return m.paths[i]
}
