package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mounts returns the files of the data directory that are mount points in this process, relative to root and
// slash-separated. No other file can replace them. Mounts of the gateway's container alone are not visible to this
// process.
func Mounts(root string) ([]string, error) {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fmt.Errorf("list the mounts in the data directory: %w", err)
	}
	all, err := mountPoints()
	if err != nil {
		return nil, fmt.Errorf("list the mounts in the data directory: %w", err)
	}
	var files []string
	for _, at := range all {
		rel, below := strings.CutPrefix(at, strings.TrimSuffix(root, "/")+"/")
		if !below {
			continue
		}
		// An unreadable mount point causes an error only if git has something there.
		if fi, err := os.Lstat(at); err == nil && !fi.IsDir() {
			files = append(files, rel)
		}
	}
	return files, nil
}
