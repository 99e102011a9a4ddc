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

// canaries have the digest of every file that only the gateway may touch. The simulator writes such files only through
// it.
type canaries struct {
	root  *os.Root
	mu    sync.Mutex
	files map[string][sha256.Size]byte
	temps int
}

// record accepts the current never-touch files as correct.
func (c *canaries) record() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.look()
	c.files = found
	return err
}

// check compares the never-touch files with the recorded ones. Changed, deleted and new files are errors.
func (c *canaries) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.look()
	errs := []error{err}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		switch sum, ok := found[name]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s was deleted: it is the gateway's own", name))
		case sum != c.files[name]:
			errs = append(errs, fmt.Errorf("%s was changed: it is the gateway's own", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := c.files[name]; !ok {
			errs = append(errs, fmt.Errorf("%s was put where only the gateway writes", name))
		}
	}
	return errors.Join(errs...)
}

// write writes a file of the gateway's own.
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

// remove deletes a file, which may be one of the gateway's own.
func (c *canaries) remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.files, name)
	return c.root.Remove(name)
}

// replace writes a file atomically. Its temporary file is in projects/.resources, which only the gateway reads, and
// check never sees it.
func (c *canaries) replace(name string, raw []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.temps++
	temp := path.Join(blobDir, "tmp-"+strconv.Itoa(c.temps))
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

func (c *canaries) look() (map[string][sha256.Size]byte, error) {
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
