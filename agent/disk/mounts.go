package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mounts are the files of the data directory that are mounts of their own, as this process sees them, relative to it and
// slash separated. No other file can take their place. What only the gateway's container has mounted cannot be seen from
// outside of it.
func Mounts(root string) ([]string, error) {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts in the data directory: %w", err)
	}
	all, err := mountPoints()
	if err != nil {
		return nil, fmt.Errorf("look for mounts in the data directory: %w", err)
	}
	var files []string
	for _, at := range all {
		rel, below := strings.CutPrefix(at, strings.TrimSuffix(root, "/")+"/")
		if !below {
			continue
		}
		// One that cannot be looked at is met where git has something there.
		if fi, err := os.Lstat(at); err == nil && !fi.IsDir() {
			files = append(files, rel)
		}
	}
	return files, nil
}
