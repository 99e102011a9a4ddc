package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Mounts returns the files of the data directory that are mount points in this process, relative to root and slash-separated. No
// other file can replace them. Mounts of the gateway's container alone are not visible to this process.
func Mounts(root string) ([]string, error) {
	files, err := mountedFiles(root)
	if err != nil {
		return nil, fmt.Errorf("list the mounts in the data directory: %w", err)
	}
	return files, nil
}

func mountedFiles(root string) ([]string, error) {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, err
	}
	all, err := mountPoints()
	if err != nil {
		return nil, err
	}
	var files []string
	for _, path := range all {
		rel, below := strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/")
		if !below {
			continue
		}
		// An unreadable mount point causes an error only if git has something there.
		if fi, err := os.Lstat(path); err == nil && !fi.IsDir() {
			files = append(files, rel)
		}
	}
	return files, nil
}

// longestMount bounds a line of mountinfo: the options of an overlay name all its layers.
const longestMount = 1 << 20

// mountPoints returns the mount points of this process, or nil without /proc.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	var list []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, longestMount)
	for lines.Scan() {
		// 36 35 98:0 /inside /at rw,noatime master:1 - ext4 /dev/sda1 rw
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			list = append(list, unescape.Replace(fields[4]))
		}
	}
	return list, lines.Err()
}

// unescape reverses the kernel's escapes of separators.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
