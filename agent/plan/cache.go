package plan

import (
	"container/list"
	"crypto/sha256"
)

// Bounds of a Cache. A map that is full is emptied: what it knew is found out again.
const (
	maxKinds   = 200_000
	maxResults = 50_000
	maxProofs  = 1024
	maxBytes   = 8 << 20
)

// Cache remembers what rendering gave, from plan to plan: by the blob and all that went into it, so that it never has to
// be told that something changed. It is bounded, and saves work only. It must not be used by several goroutines at once.
type Cache struct {
	kinds   map[ID]kind       // of blobs as templates, and of trees: whether any blob in it is volatile
	results map[[32]byte]ID   // recipe → what it gives
	proofs  map[string]string // pattern of a patch → a file that it matched
	bytes   map[ID]*list.Element
	recent  *list.List // of rendered, the last used first
	size    int        // bytes in recent
}

type rendered struct {
	id      ID
	content []byte
}

// NewCache makes an empty Cache.
func NewCache() *Cache {
	return &Cache{
		kinds: make(map[ID]kind), results: make(map[[32]byte]ID), proofs: make(map[string]string),
		bytes: make(map[ID]*list.Element), recent: list.New(),
	}
}

// Desire is like the function Desire, and uses what earlier plans found out.
func (c *Cache) Desire(objects Objects, root ID, rules Rules) (*Desired, error) {
	return desire(objects, root, rules, c)
}

// put adds to a map that is emptied when it is full.
func put[K comparable, V any](m map[K]V, key K, value V, limit int) {
	if len(m) >= limit {
		clear(m)
	}
	m[key] = value
}

// keep remembers a result, and its bytes for as long as there is room.
func (c *Cache) keep(key [sha256.Size]byte, id ID, content []byte) {
	put(c.results, key, id, maxResults)
	if len(content) > maxBytes/4 || c.bytes[id] != nil {
		return
	}
	c.bytes[id] = c.recent.PushFront(rendered{id, content})
	for c.size += len(content); c.size > maxBytes; {
		oldest := c.recent.Remove(c.recent.Back()).(rendered) //nolint:forcetypeassert // nothing else is in it
		delete(c.bytes, oldest.id)
		c.size -= len(oldest.content)
	}
}

func (c *Cache) content(id ID) ([]byte, bool) {
	e, ok := c.bytes[id]
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(e)
	r, ok := e.Value.(rendered)
	return r.content, ok
}
