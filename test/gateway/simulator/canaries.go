package simulator

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// canaries holds the digest of every file that only the gateway may write (never-touch files), to detect changes by
// other programs. The simulator writes such files only through canaries.
type canaries struct {
	root      *os.Root
	mu        sync.Mutex
	files     map[string][sha256.Size]byte
	tempFiles int // number of temporary files so far
}

// record accepts the current never-touch files as correct.
func (c *canaries) record() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.digests()
	c.files = found
	return err
}

// check compares the never-touch files with the recorded ones. Changed, deleted and new files are errors.
func (c *canaries) check() error {
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

// write writes a file of the gateway, and records its digest if it is a never-touch file.
func (c *canaries) write(name string, raw []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := writeFile(c.root, name, raw); err != nil {
		return err
	}
	if neverTouch(name) {
		c.files[name] = sha256.Sum256(raw)
	}
	return nil
}

// remove deletes a file and its recorded digest, if any.
func (c *canaries) remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.files, name)
	return c.root.Remove(name)
}

// replace writes a file atomically. Its temporary file is in projects/.resources, which only the gateway reads. check
// never sees the temporary file, because mu is held.
func (c *canaries) replace(name string, raw []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tempFiles++
	temp := path.Join(blobDir, "tmp-"+strconv.Itoa(c.tempFiles))
	if err := writeFile(c.root, temp, raw); err != nil {
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

// digests returns the digests of all current never-touch files.
func (c *canaries) digests() (map[string][sha256.Size]byte, error) {
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
		raw, err := readFile(c.root, name)
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
	if slices.Contains(dirs, ".stoker") {
		return false // the agent's own folder
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
		".container-init.conf", seedMarker, "commissioning.json", "modules.json", "redundancy.xml", "ignition.conf", "logback.xml",
		"conversion-report.txt",
	}, base)
}
