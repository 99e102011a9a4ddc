// Package verdicts has tables of valid and invalid GatewaySyncs and ConfigSyncs. Tests of package validation check them with Go, and tests
// of test/crd check them with the CRD: both must accept the same objects.
package verdicts

import (
	"fmt"
	"slices"
)

// O is a JSON object.
type O = map[string]any

// L is a JSON array.
type L = []any

// Case is one object and the expected verdict.
type Case struct {
	// Name of the case, which states the outcome.
	Name string
	// Kind of the object; empty for a GatewaySync.
	Kind string
	// ObjectName is metadata.name; empty for an ordinary name.
	ObjectName string
	// Spec is merged into the spec of the smallest valid object; nil removes a field.
	Spec O
	// Refused is the field that the Go validation names; empty for a valid object.
	Refused string
	// Undecodable reports whether the object cannot be decoded into the Go type.
	Undecodable bool
	// GoOnly says why the CRD accepts an object that the Go validation refuses; empty if it refuses it, too.
	GoOnly string
	// CRDOnly says why the CRD refuses an object that the Go validation accepts.
	CRDOnly string
}

// Reasons for GoOnly.
const (
	noPatterns = "a schema cannot parse a pattern"
	noKeys     = "a schema cannot check the keys of a map"
)

// Table returns all cases.
func Table() []Case {
	return slices.Concat(
		names(),
		repositories(),
		refs(),
		credentials(),
		signatures(),
		timing(),
		gateways(),
		agents(),
		defaults(),
		profiles(),
		mappings(),
		patches(),
		bidirectional(),
		deployment(), storage(),
		alerting(),
		autoRollback(),
		validation(),
	)
}

// Object returns the object of a case.
func (c *Case) Object() O {
	name := c.ObjectName
	if name == "" {
		name = "plant"
	}
	kind, spec := "GatewaySync", O{"git": O{"repo": "https://git.example.com/plant.git", "ref": "main"}}
	if c.Kind != "" {
		kind, spec = c.Kind, O{"source": O{"git": O{"repoURL": "https://git.example.com/plant.git"}}}
	}
	merge(spec, c.Spec)
	return O{
		"apiVersion": "stoker.io/v1alpha1",
		"kind":       kind,
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

// good is the case of a valid spec.
func good(name string, spec O) Case { return Case{Name: name + " is accepted", Spec: spec} }

// bad is the case of an invalid spec. The Go validation must name the field.
func bad(name, field string, spec O) Case {
	return Case{Name: name + " is refused", Refused: field, Spec: spec}
}

// wrongType is the case of a spec with a value of a wrong JSON type.
func wrongType(name string, spec O) Case {
	return Case{Name: name + " is refused", Undecodable: true, Spec: spec}
}

// goOnly is the case of an invalid spec that only the Go validation refuses; why says why the CRD cannot.
func goOnly(why, name, field string, spec O) Case {
	c := bad(name, field, spec)
	c.GoOnly = why
	return c
}

// each returns a case for each value. Its name is followed by the value.
func each[T any](values []T, name string, of func(name string, value T) Case) []Case {
	cases := make([]Case, 0, len(values))
	for _, v := range values {
		cases = append(cases, of(fmt.Sprintf(name+" %.60q", fmt.Sprint(v)), v))
	}
	return cases
}

// times returns a list of n values.
func times(n int, value func(i int) any) L {
	list := make(L, n)
	for i := range list {
		list[i] = value(i)
	}
	return list
}

// entries returns an object with n members of the same value.
func entries(n int, value any) O {
	o := O{}
	for i := range n {
		o[fmt.Sprintf("k%d", i)] = value
	}
	return o
}
