package plan

import (
	"fmt"
	"iter"
)

// Unwanted yields the regular files in mapped directories that are neither desired nor owned: those that prune mirror
// deletes.
func (d *Desired) Unwanted(ours Manifest, state State) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		for _, dir := range d.mappedDirs() {
			for f, err := range d.unwanted(dir, ours, state) {
				if !yield(f, err) || err != nil {
					return
				}
			}
		}
	}
}

// unwanted is Unwanted for one directory, sorted.
func (d *Desired) unwanted(dir string, ours Manifest, state State) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		desired := newCursor(d.gitBelow(dir), func(w Want) string { return w.Path })
		defer desired.stop()
		owned := newCursor(ours.All(dir+"/"), func(r Owned) string { return r.Path })
		defer owned.stop()
		for f, err := range state.Walk(dir) {
			if err != nil {
				yield(f, fmt.Errorf("walk %s: %w", dir, err))
				return
			}
			wanted, err := desired.has(f.Path)
			if err != nil {
				yield(f, err)
				return
			}
			had, err := owned.has(f.Path)
			if err != nil {
				yield(f, fmt.Errorf("read the manifest: %w", err))
				return
			}
			if wanted || had || f.Stat.Kind != File || d.rules.leave(f.Path) {
				continue
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}
