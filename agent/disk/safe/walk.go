package safe

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Walk calls yield for each file below a directory, in the order of full paths. It stops and returns false when yield does. stat
// converts the state of a file; if stat is nil, Walk sets only the kind, which spares a system call for each file.
func Walk(n *Folder, depth int, stat func(fs.FileInfo) plan.Stat, yield func(plan.Found, error) bool) bool {
	if depth > MaxDepth {
		return yield(plan.Found{}, failure.New(v1alpha1.ReasonLimitExceeded, "%s is more than %d directories deep", n.Path, MaxDepth))
	}
	list, err := n.Entries()
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return yield(plan.Found{}, fmt.Errorf("list %s: %w", n.Path, err))
	}
	slices.SortFunc(list, byPath)
	for _, e := range list {
		if strings.EqualFold(e.Name(), OwnDir) {
			continue
		}
		if !e.IsDir() {
			f := plan.Found{Path: n.Join(e.Name()), Stat: plan.Stat{Kind: KindOf(e.Type())}}
			if stat != nil {
				fi, err := n.Lstat(e.Name())
				if errors.Is(err, fs.ErrNotExist) {
					continue // removed meanwhile
				}
				if err != nil {
					return yield(plan.Found{}, fmt.Errorf("stat %s: %w", f.Path, err))
				}
				f.Stat = stat(fi)
			}
			if f.Stat.Kind != plan.Dir && !yield(f, nil) { // it may have become a directory since it was listed
				return false
			}
			continue
		}
		child, err := n.Open(e.Name())
		if NotThere(err) {
			continue
		}
		if err != nil {
			return yield(plan.Found{}, fmt.Errorf("open %s: %w", n.Join(e.Name()), err))
		}
		more := Walk(child, depth+1, stat, yield)
		child.Close()
		if !more {
			return false
		}
	}
	return true
}

// byPath orders names like the paths below them: a directory sorts as if its name ended in a slash.
func byPath(a, b fs.DirEntry) int {
	x, y := a.Name(), b.Name()
	if a.IsDir() {
		x += "/"
	}
	if b.IsDir() {
		y += "/"
	}
	return strings.Compare(x, y)
}

// FirstFile returns the path of the first non-directory below a folder, or "" if there is none.
func FirstFile(n *Folder) (string, error) {
	first := ""
	var failed error
	Walk(n, 0, StatOf, func(f plan.Found, err error) bool {
		first, failed = f.Path, err
		return false
	})
	return first, failed
}
