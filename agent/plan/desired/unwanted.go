package desired

import (
	"fmt"
	"iter"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// MappedDirs returns the destinations of directory mappings whose source is in the commit, without nested ones and never-touch paths.
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

// Unwanted yields the regular files in mapped directories that are neither desired nor owned, and that the rules do not leave alone. Prune
// mirror deletes these files. A volume may ignore case or Unicode normalization, so that one file has two names. A file that git has under
// its other name is not unwanted.
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

// spellings bounds the files that UnwantedIn compares with other spellings at a time.
const spellings = 1 << 14

// UnwantedIn is Unwanted for one directory, sorted.
func (t *Tree) UnwantedIn(dir string, manifest plan.Manifest, state plan.State) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		var files []plan.Found
		flush := func() bool {
			list, err := withoutOtherSpellings(t, dir, files, state)
			if err != nil {
				yield(plan.Found{}, err)
				return false
			}
			for _, f := range list {
				if !yield(f, nil) {
					return false
				}
			}
			files = files[:0]
			return true
		}
		for f, err := range t.unwantedNames(dir, manifest, state) {
			if err != nil {
				yield(f, err)
				return
			}
			if files = append(files, f); len(files) == spellings && !flush() {
				return
			}
		}
		flush()
	}
}

// withoutOtherSpellings removes from list, which is of dir, the files that git has under another spelling.
func withoutOtherSpellings(t *Tree, dir string, list []plan.Found, state plan.State) ([]plan.Found, error) {
	if len(list) == 0 {
		return nil, nil
	}
	names := make(map[string][]string, len(list)) // by spelling
	for _, f := range list {
		spelling := relpath.Fold(f.Path)
		names[spelling] = append(names[spelling], f.Path)
	}
	same := make(map[string]bool)
	for path, err := range t.Paths(dir) {
		if err != nil {
			return nil, err
		}
		found := names[relpath.Fold(path)]
		if len(found) == 0 {
			continue
		}
		wanted, err := state.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		for _, name := range found {
			st, err := state.Stat(name)
			if err != nil {
				return nil, fmt.Errorf("stat %s: %w", name, err)
			}
			same[name] = same[name] || st == wanted
		}
	}
	return slices.DeleteFunc(list, func(f plan.Found) bool { return same[f.Path] }), nil
}

// unwantedNames yields the files of UnwantedIn, and those that git has under another spelling.
func (t *Tree) unwantedNames(dir string, manifest plan.Manifest, state plan.State) iter.Seq2[plan.Found, error] {
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
