package planner

import (
	"math"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A record of the manifest names its mapping by an index into the header. A mapping keeps its index while a record uses
// it, even if the rules change around it; otherwise one changed file could renew 100,000 records. During planning,
// Change.Origin is the index in the rules; nameMappings translates it at the end.

// sameOrigin reports whether a record names the mapping that brings the file now.
func (p *planner) sameOrigin(rec plan.Owned, w desired.File) bool {
	return int(rec.Origin) < len(p.header.Mappings) && p.header.Mappings[rec.Origin] == p.origin(w.Origin)
}

func (p *planner) origin(mapping uint16) plan.Origin {
	m := p.rules.Mappings[mapping]
	return plan.Origin{Source: string(m.Source), Destination: string(m.Destination)}
}

// keepOrigin marks the index of a record as used for this plan, even if the plan drops the record: applying the change
// may fail, and then the record stays.
func (p *planner) keepOrigin(rec plan.Owned) {
	if int(rec.Origin) < len(p.used) {
		p.used[rec.Origin] = true
	}
}

// nameMappings fills Changes.Mappings. Mappings of the rules keep their old index, or get an index that no record uses,
// or are appended. Only a full plan has seen all records and can tell which indexes are free.
func (p *planner) nameMappings() error {
	table := append([]plan.Origin(nil), p.header.Mappings...)
	index := make(map[plan.Origin]uint16, len(table))
	for i, o := range table {
		if _, ok := index[o]; !ok {
			index[o] = uint16(i)
		}
	}
	free := p.freePlaces()
	of := make([]uint16, len(p.rules.Mappings))
	for i, o := range p.rules.Origins() {
		at, ok := index[o]
		switch {
		case ok:
		case len(free) > 0:
			at, free = free[0], free[1:]
			table[at] = o
		case len(table) > math.MaxUint16:
			return failure.New(v1alpha1.ReasonLimitExceeded, "more than %d mappings were in force since the last full "+
				"comparison; request force-sync", math.MaxUint16)
		default:
			at = uint16(len(table))
			table = append(table, o)
		}
		index[o], of[i] = at, at
	}
	for i := range p.changes.List {
		c := &p.changes.List[i]
		switch c.Op {
		case plan.Create, plan.Update, plan.Adopt, plan.Keep:
			c.Origin = of[c.Origin]
		default:
			c.Origin = 0
		}
	}
	p.changes.Mappings = table
	return nil
}

// freePlaces returns the indexes that neither a record nor the rules use.
func (p *planner) freePlaces() []uint16 {
	if !p.full {
		return nil
	}
	var free []uint16
	for i, used := range p.used {
		if !used && !p.rules.HasMapping(p.header.Mappings[i]) {
			free = append(free, uint16(i))
		}
	}
	return free
}
