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

// record describes an object of a pack that is being written. Only the records, of 48 bytes each, take memory in proportion to
// the pack.
type record struct {
	id        plan.ID
	crc       uint32 // of the packed bytes
	off       int64
	base      int64 // of a kindOffset: offset of the base; of a kindRef: index in receiver.baseIDs
	kind      kind  // of the object; zero while a delta is not resolved
	entryKind kind  // of the entry
}

// objectHasher computes object ids, and detects SHA-1 collision attacks.
type objectHasher struct {
	sum sha1cd.CollisionResistantHash
	buf []byte
}

func newObjectHasher() *objectHasher {
	return &objectHasher{sum: sha1cd.New().(sha1cd.CollisionResistantHash)}
}

// start begins a new object. The caller writes its content to the returned hash.
func (h *objectHasher) start(k kind, size int64) hash.Hash {
	h.sum.Reset()
	h.buf = appendObjectHeader(h.buf[:0], k, size)
	_, _ = h.sum.Write(h.buf)
	return h.sum
}

// appendObjectHeader appends the header that is hashed before the content of an object.
func appendObjectHeader(b []byte, k kind, size int64) []byte {
	b = append(append(b, k.String()...), ' ')
	return append(strconv.AppendInt(b, size, 10), 0)
}

// id returns the id of the object, or an error if the content is a collision attack.
func (h *objectHasher) id() (plan.ID, error) {
	sum, collision := h.sum.CollisionResistantSum(h.buf[:0])
	if collision {
		return plan.ID{}, corrupt("an object is part of a SHA-1 collision attack")
	}
	return plan.ID(sum[:20]), nil
}

// sortByID returns the positions in recs, sorted by object id. An id that occurs twice is an error.
func sortByID(recs []record) ([]int32, error) {
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

// findByID returns the position in recs of an id. order is the result of sortByID.
func findByID(recs []record, order []int32, id plan.ID) (int32, bool) {
	i, ok := slices.BinarySearchFunc(order, id, func(i int32, id plan.ID) int { return bytes.Compare(recs[i].id[:], id[:]) })
	if !ok {
		return 0, false
	}
	return order[i], true
}

// findByOffset returns the position in recs of the entry that starts at off.
func findByOffset(recs []record, off int64) (int32, bool) {
	i := sort.Search(len(recs), func(i int) bool { return recs[i].off >= off })
	return int32(i), i < len(recs) && recs[i].off == off
}
