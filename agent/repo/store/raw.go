package store

import (
	"bytes"

	"stoker.io/stoker/agent/plan"
)

// RawTree returns the bytes of a tree as git has them. Entries that a caller copies from it keep modes that Tree does not tell, such as
// 100664.
func (s *Store) RawTree(id plan.ID) ([]byte, error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, id, kindTree); err != nil {
		return nil, s.NoteDamage(err)
	}
	if _, err := parseTree(id, b.Bytes()); err != nil { // the caller relies on its form
		return nil, err
	}
	return b.Bytes(), nil
}
