// Package datadir reads and writes the files of a gateway's data directory, and detects changes by other programs to those that
// only the gateway may write.
package datadir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Canaries holds the digest of every file that only the gateway may write (never-touch files), to detect changes by
// other programs. The simulator writes such files only through Canaries, except a probe that it removes at once.
type Canaries struct {
	root      *os.Root
	mu        sync.Mutex
	files     map[string][sha256.Size]byte
	tempFiles int // number of temporary files so far
}

// NewCanaries returns Canaries without recorded files.
func NewCanaries(root *os.Root) *Canaries { return &Canaries{root: root} }

// Record accepts the current never-touch files as correct.
func (c *Canaries) Record() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.digests()
	c.files = found
	return err
}

// Check compares the never-touch files with the recorded ones. Changed, deleted and new files are errors.
func (c *Canaries) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.digests()
	errs := []error{err}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		switch sum, ok := found[name]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s was deleted, which only the gateway may do", name))
		case sum != c.files[name]:
			errs = append(errs, fmt.Errorf("%s was changed, which only the gateway may do", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := c.files[name]; !ok {
			errs = append(errs, fmt.Errorf("%s was added, which only the gateway may do", name))
		}
	}
	return errors.Join(errs...)
}

// Write writes a file of the gateway, and records its digest if it is a never-touch file.
func (c *Canaries) Write(name string, raw []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := Write(c.root, name, raw); err != nil {
		return err
	}
	if neverTouch(name) {
		c.files[name] = sha256.Sum256(raw)
	}
	return nil
}

// Remove deletes a file and its recorded digest, if any.
func (c *Canaries) Remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.files, name)
	return c.root.Remove(name)
}

// Replace writes a file atomically. Its temporary file is in projects/.resources, which only the gateway reads. Check
// never sees the temporary file, because mu is held.
func (c *Canaries) Replace(name string, raw []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tempFiles++
	temp := path.Join(BlobDir, "tmp-"+strconv.Itoa(c.tempFiles))
	if err := Write(c.root, temp, raw); err != nil {
		return err
	}
	err := c.root.MkdirAll(path.Dir(name), 0o755)
	if err == nil {
		err = c.root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, c.root.Remove(temp))
	}
	return nil
}

// Put writes a file of the gateway: a never-touch file in place, any other atomically.
func (c *Canaries) Put(name string, raw []byte) error {
	if neverTouch(name) {
		return c.Write(name, raw)
	}
	return c.Replace(name, raw)
}

// digests returns the digests of all current never-touch files.
func (c *Canaries) digests() (map[string][sha256.Size]byte, error) {
	found := map[string][sha256.Size]byte{}
	err := fs.WalkDir(c.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since its directory was read
		case err != nil:
			return err
		case d.IsDir() || !neverTouch(name):
			return nil
		case !d.Type().IsRegular():
			found[name] = [sha256.Size]byte{} // a link in place of a file is a change
			return nil
		}
		raw, err := Read(c.root, name)
		if err != nil {
			return err
		}
		found[name] = sha256.Sum256(raw)
		return nil
	})
	return found, err
}

// neverTouch reports whether only the gateway may write or delete a path.
func neverTouch(name string) bool {
	dirs := strings.Split(path.Dir(name), "/")
	if slices.Contains(dirs, ".stoker") || strings.HasPrefix(name, "config/resources/local/ignition/api-token/stoker-agent/") {
		return false // the agent's own folder and API key
	}
	for i, d := range dirs {
		if d == ".resources" || d == "certificates" || d == "keystore" || d == ".git" {
			return true
		}
		if i == 0 && slices.Contains([]string{"db", "metricsdb", "var", "autobackup", "jar-cache", "logs"}, d) {
			return true
		}
	}
	for _, dir := range []string{"config/local/", "config/resources/local/", "config/ignition/keys/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	base := path.Base(name)
	if strings.HasPrefix(base, "valueStore.idb") || strings.HasSuffix(base, ".log") ||
		strings.HasSuffix(base, ".digest.json") || strings.HasPrefix(base, ".alarms_") {
		return true
	}
	if len(dirs) > 1 || dirs[0] != "." {
		return false
	}
	return strings.HasPrefix(base, "gateway.xml") || strings.HasPrefix(base, "migration-log-") || slices.Contains([]string{
		".container-init.conf", SeedMarker, "commissioning.json", "modules.json", "redundancy.xml", "ignition.conf", "logback.xml",
		"conversion-report.txt",
	}, base)
}

const (
	// ProjectsDir has a directory for each project.
	ProjectsDir = "projects"
	// BlobDir has a copy of the content of each file of a project, named by its digest.
	BlobDir = ProjectsDir + "/.resources"
	// ResourcesDir has a directory for each resource collection.
	ResourcesDir = "config/resources"
	// SeedMarker is the file that marks a seeded data directory.
	SeedMarker = ".ignition-seed-complete"

	maxSize = 256 << 20 // of a file that Read reads, in bytes
)

// Read reads a regular file of at most 256 MiB.
func Read(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(raw) > maxSize {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxSize>>20)
	}
	return raw, err
}

// Write writes a file below the data directory, and creates its parents.
func Write(root *os.Root, name string, raw []byte) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return root.WriteFile(name, raw, 0o644)
}

// List lists a directory. A missing directory is empty.
func List(root *os.Root, dir string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

// Exists reports whether there is a file, a directory or a link with this name.
func Exists(root *os.Root, name string) bool {
	_, err := root.Lstat(name)
	return err == nil
}
