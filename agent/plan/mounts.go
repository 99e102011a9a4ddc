package plan

import (
	"slices"
)

// Mounts are the paths below the data directory at which the gateway's container has mounts of its own, such as a
// Secret mounted over a placeholder file of git. The agent leaves them alone like never-touch paths. It must not rename
// or remove a name under or above such a mount either: when a mount point goes away, Linux unmounts what is mounted on
// it, in the gateway's container too.
type Mounts struct {
	paths  []string // sorted, without nested ones
	folded []string // the same paths folded, because a volume may ignore case
}

// NewMounts returns the Mounts of paths relative to the data directory. Paths that git cannot have are dropped.
func NewMounts(paths []string) Mounts {
	var list []string
	for _, p := range paths {
		if path, err := ParsePath(p); err == nil && path != Root {
			list = append(list, path.rel())
		}
	}
	slices.Sort(list)
	var m Mounts
	for _, p := range list {
		if m.at(p) == "" {
			m.paths, m.folded = append(m.paths, p), append(m.folded, fold(p))
		}
	}
	return m
}

// at returns the mount at or above path, or "".
func (m *Mounts) at(path string) string {
	return m.find(path, func(path, mount string) bool { return path == mount || below(path, mount) })
}

// under returns a mount below path, or "".
func (m *Mounts) under(path string) string {
	return m.find(path, func(path, mount string) bool { return below(mount, path) })
}

func (m *Mounts) find(path string, is func(path, mount string) bool) string {
	if len(m.paths) == 0 {
		return ""
	}
	path = fold(path)
	i := slices.IndexFunc(m.folded, func(mount string) bool { return is(path, mount) })
	if i < 0 {
		return ""
	}
	return m.paths[i]
}
