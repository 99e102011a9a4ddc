package source

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"stoker.io/stoker/agent/repo"
)

// Cache keeps git objects between the runs of ConfigSyncs, so that a run fetches only what changed since the last one. Each ConfigSync
// has its own store, so that it cannot read objects that only another ConfigSync has the credentials for. A nil Cache keeps nothing. A
// Cache is safe for concurrent use.
type Cache struct {
	dir       string
	limit     int64
	storeSize int64

	mu     sync.Mutex
	stores map[string]*cachedStore // by owner
}

// cachedStore is the store of an owner.
type cachedStore struct {
	source string // see Slot
	dir    string
	size   int64 // bytes, after the last use
	used   time.Time
	busy   bool
}

// NewCache returns a cache in a new temporary directory. Stores that are not in use have at most limit bytes together. The least recently
// used store is removed first. Each store, also one in use, has at most storeSize bytes; 0 means any size. The caller closes the cache.
func NewCache(limit, storeSize int64) (*Cache, error) {
	dir, err := os.MkdirTemp("", "stoker-")
	return &Cache{dir: dir, limit: limit, storeSize: storeSize, stores: map[string]*cachedStore{}}, err
}

// Close removes the directory of the cache.
func (c *Cache) Close() error { return os.RemoveAll(c.dir) }

// Slot identifies the store of one owner in a cache. If the Source of an owner changes, its store is removed first. The zero Slot keeps
// nothing.
type Slot struct {
	Cache         *Cache
	Owner, Source string
}

// limits returns the bounds of the slot's store.
func (s Slot) limits() repo.Limits {
	if s.Cache == nil {
		return repo.Limits{}
	}
	return repo.Limits{DiskBytes: s.Cache.storeSize}
}

// acquire returns the directory of the slot's store. The caller calls release after its last use, with false if the store is damaged.
func (s Slot) acquire() (dir string, release func(keep bool) error, err error) {
	if s.Cache == nil {
		dir, err = os.MkdirTemp("", "stoker-")
		return dir, func(bool) error { return os.RemoveAll(dir) }, err
	}
	return s.Cache.acquire(s.Owner, s.Source)
}

func (c *Cache) acquire(owner, source string) (string, func(keep bool) error, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.stores[owner]
	if k != nil && k.busy {
		return "", nil, errors.New("two runs of one ConfigSync at the same time")
	}
	if k != nil && (k.source != source || c.storeSize > 0 && k.size > c.storeSize/4) { // leave room for the next fetch
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
		k = &cachedStore{source: source, dir: dir}
		c.stores[owner] = k
	}
	k.busy = true
	return k.dir, func(keep bool) error { return c.release(owner, k, keep) }, nil
}

func (c *Cache) release(owner string, k *cachedStore, keep bool) error {
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

// Forget removes the store of an owner. If a run uses the store, Forget does nothing, and the limit of the cache removes it later.
func (c *Cache) Forget(owner string) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.stores[owner]; k == nil || k.busy {
		return nil
	}
	return c.remove(owner)
}

// remove removes the store of an owner. The caller holds c.mu.
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
