// Package verdicts is the table of good and bad GatewaySyncs. The tests of api/v1alpha1 hold the Go validation to it, and
// those of test/crd the CRD as an API server reads it: both must come to the same verdict. No product code imports it.
package verdicts

import (
	"fmt"
	"slices"
)

// O is an object of JSON.
type O = map[string]any

// L is a list of JSON.
type L = []any

// Case is one object and what is to be said about it.
type Case struct {
	// Name states the outcome.
	Name string
	// ObjectName is metadata.name; empty stands for an ordinary one.
	ObjectName string
	// Spec is merged into the spec of the smallest good object; nil removes a field.
	Spec O
	// Refused is the field that the Go validation names; empty for a good object.
	Refused string
	// Undecodable is true where the object does not even fit the Go type.
	Undecodable bool
	// AgentOnly says why the CRD cannot refuse a bad object, where it does not.
	AgentOnly string
	// CRDOnly says why only the CRD refuses an object.
	CRDOnly string
}

// Reasons why a CRD takes what the agent refuses.
const (
	noPatterns = "a schema cannot parse a pattern"
	noKeys     = "a schema cannot look at the keys of a map"
)

// Table returns all cases.
func Table() []Case {
	return slices.Concat(names(), repositories(), refs(), credentials(), timing(), gateways(), agents(),
		defaults(), profiles(), mappings(), patches(), bidirectional())
}

// Object returns the object of a case.
func (c *Case) Object() O {
	name := c.ObjectName
	if name == "" {
		name = "plant"
	}
	spec := O{"git": O{"repo": "https://git.example.com/plant.git", "ref": "main"}}
	merge(spec, c.Spec)
	return O{
		"apiVersion": "stoker.io/v1alpha1",
		"kind":       "GatewaySync",
		"metadata":   O{"name": name, "namespace": "site"},
		"spec":       spec,
	}
}

func merge(into, from O) {
	for k, v := range from {
		child, isObject := v.(O)
		old, wasObject := into[k].(O)
		switch {
		case v == nil:
			delete(into, k)
		case isObject && wasObject:
			merge(old, child)
		default:
			into[k] = v
		}
	}
}

func good(name string, spec O) Case { return Case{Name: name + " is taken", Spec: spec} }

func bad(name, field string, spec O) Case {
	return Case{Name: name + " is refused", Refused: field, Spec: spec}
}

// wrong is an object with a value of a wrong JSON type.
func wrong(name string, spec O) Case {
	return Case{Name: name + " is refused", Undecodable: true, Spec: spec}
}

// agentOnly is a bad object that a CRD cannot tell from a good one.
func agentOnly(why, name, field string, spec O) Case {
	c := bad(name, field, spec)
	c.AgentOnly = why
	return c
}

// each makes one case of every value.
func each[T any](values []T, name string, of func(name string, value T) Case) []Case {
	cases := make([]Case, 0, len(values))
	for _, v := range values {
		cases = append(cases, of(fmt.Sprintf(name+" %.60q", fmt.Sprint(v)), v))
	}
	return cases
}

// times makes a list of n values.
func times(n int, value func(i int) any) L {
	list := make(L, n)
	for i := range list {
		list[i] = value(i)
	}
	return list
}

// entries makes an object of n members.
func entries(n int, value any) O {
	o := O{}
	for i := range n {
		o[fmt.Sprintf("k%d", i)] = value
	}
	return o
}
