package source

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Cache keeps git objects between the runs of ConfigSyncs, so that a run fetches only what changed since the last one. Each ConfigSync
// has a store of its own: one never reads what another could fetch. A nil Cache keeps nothing.
type Cache struct {
	dir   string
	limit int64

	mu     sync.Mutex
	stores map[string]*kept // by owner
}

// kept is the store of an owner.
type kept struct {
	source string // what it was fetched from
	dir    string
	size   int64 // when it was last used
	used   time.Time
	busy   bool
}

// NewCache returns a cache in a new temporary directory. Stores that are not in use have at most limit bytes together; those that were not
// used for the longest time are removed first.
func NewCache(limit int64) (*Cache, error) {
	dir, err := os.MkdirTemp("", "stoker-")
	return &Cache{dir: dir, limit: limit, stores: map[string]*kept{}}, err
}

// Close removes everything.
func (c *Cache) Close() error { return os.RemoveAll(c.dir) }

// Slot is a place in a cache for the objects of one owner, from one source. Both are compared only. The zero Slot keeps nothing.
type Slot struct {
	Cache         *Cache
	Owner, Source string
}

// take returns the directory of the slot's store, and what to call after its last use. A store that is damaged is not worth keeping.
func (s Slot) take() (dir string, release func(keep bool) error, err error) {
	if s.Cache == nil {
		dir, err = os.MkdirTemp("", "stoker-")
		return dir, func(bool) error { return os.RemoveAll(dir) }, err
	}
	return s.Cache.take(s.Owner, s.Source)
}

func (c *Cache) take(owner, source string) (string, func(keep bool) error, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.stores[owner]
	if k != nil && k.busy {
		return "", nil, errors.New("two runs of one ConfigSync at the same time")
	}
	if k != nil && k.source != source {
		if err := c.remove(owner); err != nil {
			return "", nil, err
		}
		k = nil
	}
	if k == nil {
		dir, err := os.MkdirTemp(c.dir, "")
		if err != nil {
			return "", nil, err
		}
		k = &kept{source: source, dir: dir}
		c.stores[owner] = k
	}
	k.busy = true
	return k.dir, func(keep bool) error { return c.release(owner, k, keep) }, nil
}

func (c *Cache) release(owner string, k *kept, keep bool) error {
	size, err := sizeOf(k.dir)
	c.mu.Lock()
	defer c.mu.Unlock()
	k.busy, k.used, k.size = false, time.Now(), size
	if !keep || err != nil {
		return c.remove(owner)
	}
	for {
		var total int64
		oldest := ""
		for owner, other := range c.stores {
			if other.busy {
				continue
			}
			total += other.size
			if oldest == "" || other.used.Before(c.stores[oldest].used) {
				oldest = owner
			}
		}
		if total <= c.limit {
			return nil
		}
		if err := c.remove(oldest); err != nil {
			return err
		}
	}
}

// Forget removes what an owner has.
func (c *Cache) Forget(owner string) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.stores[owner]; k == nil || k.busy {
		return nil // a run is under way; the bound is what removes it
	}
	return c.remove(owner)
}

// remove is called with the lock held.
func (c *Cache) remove(owner string) error {
	dir := c.stores[owner].dir
	delete(c.stores, owner)
	return os.RemoveAll(dir)
}

// sizeOf returns the bytes of all files below a directory.
func sizeOf(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
