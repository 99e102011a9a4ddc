package desired

import (
	"fmt"
	"iter"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// MappedDirs returns the destinations of directory mappings, without nested ones.
func (t *Tree) MappedDirs() []string {
	var dirs []string
	var visit func(path string, d *destination)
	visit = func(path string, d *destination) {
		if path != "" && resource.NeverTouch(path) {
			return
		}
		if slices.ContainsFunc(d.sources, func(m source) bool { return m.entry.Mode == plan.Directory }) {
			dirs = append(dirs, path)
			return
		}
		for _, name := range slices.Sorted(slices.Values(d.names)) {
			visit(relpath.Join(path, name), d.below[name])
		}
	}
	visit("", t.overlay.destinations)
	return dirs
}

// cursor looks up paths in a sorted stream, in ascending order, without reading the stream into memory.
type cursor[T any] struct {
	next func() (T, error, bool)
	stop func()
	key  func(T) string
	path string // the key of the current element
	err  error
	more bool // there is a current element
}

func newCursor[T any](seq iter.Seq2[T, error], key func(T) string) *cursor[T] {
	c := &cursor[T]{key: key}
	c.next, c.stop = iter.Pull2(seq)
	c.advance()
	return c
}

func (c *cursor[T]) advance() {
	var v T
	if v, c.err, c.more = c.next(); c.more && c.err == nil {
		c.path = c.key(v)
	}
}

// has reports whether the stream contains path. The path must not be lower than that of the last call.
func (c *cursor[T]) has(path string) (bool, error) {
	for c.more && c.err == nil && c.path < path {
		c.advance()
	}
	return c.more && c.err == nil && c.path == path, c.err
}

// Unwanted yields the regular files in mapped directories that are neither desired nor owned. Prune mirror deletes these files.
func (t *Tree) Unwanted(manifest plan.Manifest, state plan.State) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		for _, dir := range t.MappedDirs() {
			for f, err := range t.UnwantedIn(dir, manifest, state) {
				if !yield(f, err) || err != nil {
					return
				}
			}
		}
	}
}

// UnwantedIn is Unwanted for one directory, sorted.
func (t *Tree) UnwantedIn(dir string, manifest plan.Manifest, state plan.State) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		wanted := newCursor(t.Paths(dir), func(path string) string { return path })
		defer wanted.stop()
		owned := newCursor(manifest.All(dir+"/"), func(r plan.Owned) string { return r.Path })
		defer owned.stop()
		for f, err := range state.Walk(dir) {
			if err != nil {
				yield(f, fmt.Errorf("walk %s: %w", dir, err))
				return
			}
			if f.Stat.Kind != plan.File {
				continue
			}
			isOwned, err := owned.has(f.Path)
			if err != nil {
				yield(f, fmt.Errorf("read the manifest: %w", err))
				return
			}
			if isOwned || t.overlay.rules.LeavesAlone(f.Path) {
				continue
			}
			isWanted, err := wanted.has(f.Path) // the most expensive check, because it reads git's trees up to the path
			if err != nil {
				yield(f, err)
				return
			}
			if isWanted {
				continue
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}
