package disk

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"strings"
)

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
