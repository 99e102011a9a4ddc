package plan

import (
	"slices"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Mounts are paths of the data directory at which the gateway has mounts of its own: a Secret over a file that git has a
// placeholder for. What lies there is as little ours as what is on the never-touch list. A name below such a mount, or the
// one that it hides, must not move: Linux unmounts what is mounted on a name that goes away, in the gateway's container too.
type Mounts struct {
	paths  []string // sorted, none below another
	folded []string // as fold has them: a volume may ignore case
}

// NewMounts makes Mounts of paths relative to the data directory. One that git cannot have needs no rule and is left out.
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

// at returns the mount that a path is at or below, "" for none.
func (m *Mounts) at(path string) string {
	return m.find(path, func(path, mount string) bool { return path == mount || below(path, mount) })
}

// under returns a mount that is below a path, "" for none.
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

// findMounts finds the mounts at which the commit has something, whether a plan compares their directories or not.
func (d *Desired) findMounts() error {
	for _, path := range d.rules.Mounts.paths {
		if _, err := d.beside(path, d.listGit); err != nil {
			return err
		}
	}
	return nil
}

// leave notes that what the commit has at a path is not synced, because of a mount.
func (d *Desired) leave(path string) {
	if slices.Contains(d.mounted, path) {
		return
	}
	d.mounted = append(d.mounted, path)
	d.warn("%s is left alone: the gateway's container has a mount of its own there, and sees that and not what git has; "+
		"exclude the path, or take it out of git", path)
}

// checkMounts refuses a file where the gateway has a directory with a mount in it.
func (p *planner) checkMounts(path string) error {
	if mount := p.rules.Mounts.under(path); mount != "" {
		return failure.New(v1alpha1.ReasonPathCollision, "git wants a file at %s, which has to be a directory, since the gateway's "+
			"container has a mount at %s: exclude the file, or take it out of git", path, mount)
	}
	return nil
}

// leftAlone says for which paths the gateway has mounts, in a few words; "" where there are none.
func (c *Changes) leftAlone() string {
	if len(c.Mounted) == 0 {
		return ""
	}
	const shown = 3
	return "left alone, since the gateway has mounts there: " + some(c.Mounted[:min(len(c.Mounted), shown)], len(c.Mounted))
}
