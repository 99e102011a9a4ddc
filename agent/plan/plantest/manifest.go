package plantest

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
)

// Manifest implements plan.Manifest in memory. The zero value is the manifest of a data directory before its first
// sync.
type Manifest struct {
	Head    plan.Header
	Records map[string]plan.Owned
}

// Header implements plan.Manifest.
func (m *Manifest) Header() plan.Header { return m.Head }

// Get implements plan.Manifest.
func (m *Manifest) Get(path string) (plan.Owned, bool, error) {
	r, ok := m.Records[path]
	return r, ok, nil
}

// All implements plan.Manifest.
func (m *Manifest) All(prefix string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		for _, path := range slices.Sorted(maps.Keys(m.Records)) {
			if strings.HasPrefix(path, prefix) && !yield(m.Records[path], nil) {
				return
			}
		}
	}
}
