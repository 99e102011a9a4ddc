package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

// writeGuard decides who may write: one method at a time, and only while the paths of the data directory lead to what is open.
type writeGuard struct {
	readOnly bool
	writing  sync.Mutex // held while writing
	opened   []openedFile
}

// openedFile is a directory or file that a Dir keeps open, so that its inode is not reused.
type openedFile struct {
	name string
	fs.FileInfo
	stat func() (fs.FileInfo, error) // of what its path leads to now
}

// add adds what is open to the guarded files. stat describes what the path leads to now.
func (g *writeGuard) add(name string, opened, stat func() (fs.FileInfo, error)) error {
	fi, err := opened()
	if err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	g.opened = append(g.opened, openedFile{name, fi, stat})
	return nil
}

// exclusive calls do, which writes in .stoker, while no other method writes. If the Dir is read-only or moved, exclusive does not
// call do, and returns ErrReadOnly or ErrMoved.
func (g *writeGuard) exclusive(do func() error) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	if g.readOnly {
		return ErrReadOnly
	}
	if err := g.checkMoved(); err != nil {
		return err
	}
	return do()
}

// checkMoved returns ErrMoved if a path no longer leads to what is open.
func (g *writeGuard) checkMoved() error {
	for _, f := range g.opened {
		fi, err := f.stat()
		if err := checkSame(f.name, f.FileInfo, fi, err); err != nil {
			return err
		}
	}
	return nil
}

// guardOpenFiles adds what d has opened to the guarded files.
func guardOpenFiles(d *Dir) error {
	lstat := func(path string) func() (fs.FileInfo, error) {
		return func() (fs.FileInfo, error) { return d.top.Lstat(path) }
	}
	g := &d.writeGuard
	err := g.add(d.path, func() (fs.FileInfo, error) { return d.top.Stat(".") }, func() (fs.FileInfo, error) { return os.Stat(d.path) })
	if err == nil && d.own != nil {
		err = g.add(safe.OwnDir, d.own.Stat, lstat(safe.OwnDir))
	}
	if err == nil && d.lock != nil {
		const path = safe.OwnDir + "/" + lock.FileName
		err = g.add(path, d.lock.File.Stat, lstat(path))
	}
	return err
}

// CheckOpen checks that the path of the Dir still leads to the files that it opened. It returns ErrMoved if the data directory
// or .stoker was replaced or removed, or if a backup was copied over the open manifest. Then writes fail with ErrMoved, too,
// and the caller has to close the Dir and open it again. CheckOpen costs four stats.
func (d *Dir) CheckOpen() error {
	if err := d.checkMoved(); err != nil {
		return err
	}
	if d.o.ReadOnly { // it keeps the manifest that it opened, whatever the agent writes
		return nil
	}
	return checkManifest(d.manifest(), d.top)
}

// checkManifest returns ErrMoved if the file at the manifest's path is not the open one or was overwritten, or if a block of it
// could not be read.
func checkManifest(m *format.Manifest, top *os.Root) error {
	const path = safe.OwnDir + "/" + manifestFile
	if m.Damaged() {
		return fmt.Errorf("%w: %s was damaged", ErrMoved, path)
	}
	fi, err := top.Lstat(path)
	if m.Info == nil {
		switch {
		case err == nil:
			return fmt.Errorf("%w: %s was created by another program", ErrMoved, path)
		case errors.Is(err, fs.ErrNotExist):
			return nil
		}
	}
	if err := checkSame(path, m.Info, fi, err); err != nil {
		return err
	}
	if m.Info.Size() != fi.Size() || !m.Info.ModTime().Equal(fi.ModTime()) {
		return fmt.Errorf("%w: %s was overwritten", ErrMoved, path)
	}
	return nil
}

// checkSame returns ErrMoved if the path of an opened file no longer leads to it. now and err are the result of a stat of the
// path.
func checkSame(name string, opened, now fs.FileInfo, err error) error {
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check that the data directory still exists: %w", err)
	case err != nil || !safe.SameFile(opened, now):
		return fmt.Errorf("%w: %s was removed or replaced", ErrMoved, name)
	}
	return nil
}

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
