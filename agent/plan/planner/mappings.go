package planner

import (
	"math"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// mappingTable translates between the indexes of the rules and those of the manifest. A record of the manifest names its mapping by
// an index into the header. A mapping keeps its index while a record uses it, even if the rules change around it; otherwise
// one inserted mapping could rewrite 100,000 records. During planning, Change.Origin is the index in the rules; renumber
// translates it at the end.
type mappingTable struct {
	old   []plan.Origin // by index of the manifest
	rules []plan.Origin // by index of the rules
	used  []bool        // by index of the manifest: a record has it
}

func newMappingTable(old []plan.Origin, rules *plan.Rules) mappingTable {
	return mappingTable{old: old, rules: rules.Origins(), used: make([]bool, len(old))}
}

// isOrigin reports whether a record names the mapping that has this index in the rules.
func (t *mappingTable) isOrigin(mapping uint16, rec plan.Owned) bool {
	o, ok := t.origin(rec)
	return ok && o == t.rules[mapping]
}

// origin returns the mapping that a record names. It returns false if the manifest has no such mapping.
func (t *mappingTable) origin(rec plan.Owned) (plan.Origin, bool) {
	if int(rec.Origin) >= len(t.old) {
		return plan.Origin{}, false
	}
	return t.old[rec.Origin], true
}

// markUsed marks the index of a record as used, even if the plan drops the record: applying the change may fail, and
// then the record stays.
func (t *mappingTable) markUsed(rec plan.Owned) {
	if int(rec.Origin) < len(t.used) {
		t.used[rec.Origin] = true
	}
}

// renumber gives the changes the indexes of the next manifest, and returns its mappings. Mappings of the rules keep their old
// index, or get an index that no record uses, or are appended. Only a full plan has seen all records and can tell which indexes
// are free.
func (t *mappingTable) renumber(changes []plan.Change, full bool) ([]plan.Origin, error) {
	table := slices.Clone(t.old)
	index := make(map[plan.Origin]uint16, len(table))
	for i, o := range table {
		if _, ok := index[o]; !ok {
			index[o] = uint16(i)
		}
	}
	var free []uint16
	if full {
		free = t.unused()
	}
	translated := make([]uint16, len(t.rules))
	for i, o := range t.rules {
		slot, ok := index[o]
		switch {
		case ok:
		case len(free) > 0:
			slot, free = free[0], free[1:]
			table[slot] = o
		case len(table) > math.MaxUint16:
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "more than %d mappings were in force since the last full "+
				"comparison; request force-sync", math.MaxUint16+1)
		default:
			slot = uint16(len(table))
			table = append(table, o)
		}
		index[o], translated[i] = slot, slot
	}
	for i := range changes {
		c := &changes[i]
		switch c.Op {
		case plan.Create, plan.Update, plan.Adopt, plan.Keep:
			c.Origin = translated[c.Origin]
		default:
			c.Origin = 0
		}
	}
	return table, nil
}

// unused returns the indexes of the manifest that neither a record nor the rules use.
func (t *mappingTable) unused() []uint16 {
	var free []uint16
	for i, used := range t.used {
		if !used && !slices.Contains(t.rules, t.old[i]) {
			free = append(free, uint16(i))
		}
	}
	return free
}
