package desired

import (
	"container/list"
	"crypto/sha256"

	"stoker.io/stoker/agent/plan"
)

// Bounds of a Cache: the entries of its maps, and the bytes of the results that it keeps. A full map is emptied.
const (
	maxKinds   = 200_000
	maxResults = 50_000
	maxMatches = 1024
	maxBytes   = 8 << 20
)

// Cache remembers rendering results across plans. A key covers everything that went into a result, so entries never go
// stale. The size is bounded, and losing entries only costs work. A Cache must not be used by several goroutines at
// once.
type Cache struct {
	kinds   map[plan.ID]kind          // of blobs and trees; a tree is volatile if any blob in it is
	results map[[32]byte]result       // by recipe key
	matches map[string]string         // mapping and pattern of a patch → a file that matched it before
	bytes   map[plan.ID]*list.Element // the elements of recent by id
	recent  *list.List                // of rendered, most recently used first
	size    int                       // bytes in recent
}

// result is the id of what a recipe makes, and the steps of its template.
type result struct {
	id       plan.ID
	steps    int
	unsigned bool // a resource.json that could not be signed
}

type rendered struct {
	id      plan.ID
	content []byte
}

// NewCache returns an empty Cache.
func NewCache() *Cache {
	return &Cache{
		kinds: make(map[plan.ID]kind), results: make(map[[32]byte]result), matches: make(map[string]string),
		bytes: make(map[plan.ID]*list.Element), recent: list.New(),
	}
}

// put sets m[key], after emptying a map that has reached limit.
func put[K comparable, V any](m map[K]V, key K, value V, limit int) {
	if len(m) >= limit {
		clear(m)
	}
	m[key] = value
}

// keep remembers a result, and its bytes if they are not too many.
func (c *Cache) keep(key [sha256.Size]byte, r result, content []byte) {
	put(c.results, key, r, maxResults)
	id := r.id
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

func (c *Cache) content(id plan.ID) ([]byte, bool) {
	e, ok := c.bytes[id]
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(e)
	r, ok := e.Value.(rendered)
	return r.content, ok
}
