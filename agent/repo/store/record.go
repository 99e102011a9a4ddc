package store

import (
	"bytes"
	"hash"
	"slices"
	"sort"
	"strconv"

	"github.com/pjbgf/sha1cd"

	"stoker.io/stoker/agent/plan"
)

// record describes an object while its pack is received. Its 48 bytes are the only memory that grows with a pack.
type record struct {
	id   plan.ID
	crc  uint32 // of the packed bytes
	off  int64
	base int64 // kindOffset: offset of the base; kindRef: index in the list of base names
	kind kind  // of the object; zero while a delta is not resolved
	as   kind  // of the entry
}

// namer computes object ids, and detects attempts at a SHA-1 collision.
type namer struct {
	sum sha1cd.CollisionResistantHash
	buf []byte
}

func newNamer() *namer { return &namer{sum: sha1cd.New().(sha1cd.CollisionResistantHash)} }

// start begins a new object. The caller writes its content to the returned hash.
func (n *namer) start(k kind, size int64) hash.Hash {
	n.sum.Reset()
	n.buf = appendHead(n.buf[:0], k, size)
	_, _ = n.sum.Write(n.buf)
	return n.sum
}

// appendHead appends the head that precedes the content of an object when its id is computed.
func appendHead(b []byte, k kind, size int64) []byte {
	b = append(append(b, k.String()...), ' ')
	return append(strconv.AppendInt(b, size, 10), 0)
}

func (n *namer) id() (plan.ID, error) {
	sum, collision := n.sum.CollisionResistantSum(n.buf[:0])
	if collision {
		return plan.ID{}, corrupt("an object is part of a SHA-1 collision attack")
	}
	return plan.ID(sum[:20]), nil
}

// byName returns the order of recs by id. An object that occurs twice is an error.
func byName(recs []record) ([]int32, error) {
	order := make([]int32, len(recs))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return bytes.Compare(recs[a].id[:], recs[b].id[:]) })
	for i := 1; i < len(order); i++ {
		if recs[order[i]].id == recs[order[i-1]].id {
			return nil, corrupt("object %s is in the pack twice", recs[order[i]].id)
		}
	}
	return order, nil
}

// findName returns the index of the record with that id.
func findName(recs []record, order []int32, id plan.ID) (int32, bool) {
	i, ok := slices.BinarySearchFunc(order, id, func(i int32, id plan.ID) int { return bytes.Compare(recs[i].id[:], id[:]) })
	if !ok {
		return 0, false
	}
	return order[i], true
}

// findOffset returns the index of the record that starts at off.
func findOffset(recs []record, off int64) (int32, bool) {
	i := sort.Search(len(recs), func(i int) bool { return recs[i].off >= off })
	return int32(i), i < len(recs) && recs[i].off == off
}
