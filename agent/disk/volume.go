package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
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

// modeProbe detects whether the volume of .stoker keeps modes, like git's core.fileMode, and records the result in
// Volume.NoModes. On SMB shares and some FUSE file systems, each file has the mode of the mount. The executable bits of such a
// volume have no meaning.
type modeProbe struct{ *safe.AgentFolder }

// run creates a file without executable bits, and one that only its owner may execute, and checks their modes.
func (a modeProbe) run() {
	for _, perm := range []fs.FileMode{0o600, 0o700} {
		fi, err := a.sample(perm)
		if err != nil { // the volume is full or read-only
			a.Vol.Log.Debug("cannot create a file to check modes", "error", err)
			a.readOnly()
			return
		}
		a.Vol.LearnModes(fi, perm)
	}
}

// sample returns the file info of a new file with a mode.
func (a modeProbe) sample(perm fs.FileMode) (fs.FileInfo, error) {
	if err := a.Vol.Vacate(a.Folder, modesFile); err != nil {
		return nil, err
	}
	f, err := a.Vol.Create(a.Folder, modesFile, perm)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err := errors.Join(f.Close(), a.Vol.Remove(a.Folder, modesFile)); err != nil {
		a.Vol.Log.Debug("cannot remove the file that checks modes", "error", err)
	}
	return fi, err
}

// readOnly checks the mode of the manifest, which was created without executable bits. Without a manifest, the volume counts as one that
// keeps modes, until a staged file shows otherwise.
func (a modeProbe) readOnly() {
	if fi, err := a.Lstat(manifestFile); err == nil {
		a.Vol.LearnModes(fi, 0)
	}
}

// scratchFile is the name of a scratch file until it is open.
const scratchFile = "scratch"

// Scratch returns a new, open file on the data volume. The file has no name, so it vanishes when it is closed, or with the process.
func (d *Dir) Scratch() (f *os.File, err error) {
	err = d.exclusive(func() error {
		if err := d.vol.Vacate(d.own.Folder, scratchFile); err != nil {
			return safe.WriteError(err, "make a scratch file")
		}
		f, err = d.vol.Create(d.own.Folder, scratchFile, 0o600)
		if err == nil {
			if err = d.vol.Remove(d.own.Folder, scratchFile); err != nil {
				err = errors.Join(err, f.Close())
			}
		}
		return safe.WriteError(err, "make a scratch file")
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// minFree is the space in bytes that CheckSpace leaves to the gateway.
const minFree = 64 << 20

// CheckSpace returns an error with the reason NoSpace if the volume of f has no room for size more bytes.
func CheckSpace(f *os.File, size int64) error {
	free, err := safe.FreeBytes(f)
	if err != nil {
		return safe.WriteError(err, "measure the free space")
	}
	if free-minFree < size {
		return failure.New(v1alpha1.ReasonNoSpace, "it has %d MiB, and the gateway's data volume has %d MiB free, of which %d stay free: free space on it",
			size>>20, free>>20, minFree>>20)
	}
	return nil
}
