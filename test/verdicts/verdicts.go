// Package verdicts has tables of valid and invalid GatewaySyncs and ConfigSyncs. Tests of package validation check them with Go, and tests
// of test/crd check them with the CRD: both must accept the same objects.
package verdicts

import (
	"fmt"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
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
	// Refused is the field that the Go validation names; empty for a valid and for an undecodable object.
	Refused string
	// Undecodable reports whether the object cannot be decoded into the Go type.
	Undecodable bool
	// GoOnly says why the CRD accepts an object that the Go validation refuses; empty if the CRD refuses it, too.
	GoOnly string
	// CRDOnly says why the CRD refuses an object that the Go validation accepts.
	CRDOnly string
}

// Frequent reasons for GoOnly.
const (
	noPatterns = "a schema cannot parse a pattern"
	noKeys     = "a schema cannot check the keys of a map"
)

// Table returns the cases of GatewaySyncs.
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

// Smallest returns the smallest valid GatewaySync.
func Smallest() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name = "plant"
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/plant.git", "main"
	return gs
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

// each returns a case for each value. of gets name, followed by the value, as the name of the case.
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

// mappingField is the path of the mapping in a spec of mapping.
const mappingField = "spec.sync.profiles[site].mappings[0]."

// mapping returns a spec with one valid mapping, in which it sets the fields of changes. A nil value removes a field.
func mapping(changes O) O {
	m := O{"source": "services/a/projects", "destination": "projects"}
	merge(m, changes)
	return O{"sync": O{"profiles": O{"site": O{"mappings": L{m}}}}}
}

func mappings() []Case {
	const source, destination = mappingField + "source", mappingField + "destination"
	accepted := each([]string{
		".", "./", "a", "a/", "./a", "a/b c/d", "..a/b", "a..b/c", "a/...", "a/.b", ".git-x", "ä/b", "-x",
		"{{.GatewayName}}/x", `{{ index .Labels "a.b/c" }}/x`,
	}, "the path", func(name, v string) Case { return good(name, mapping(O{"source": v, "destination": v})) })
	malformed := []string{
		"", "..", "../a", "a/..", "a/../b", "./../a", "a/./b", "a/.", "/", "/a", "//a", "a//b", "a//", `a\..\b`, `C:\x`,
		"a\nb", "a\rb", "a\x00b", "\x7f", strings.Repeat("a", 1025), strings.Repeat("../", 300) + "etc/passwd",
	}
	sources := each(malformed, "the source", func(name, v string) Case { return bad(name, source, mapping(O{"source": v})) })
	destinations := each(malformed, "the destination", func(name, v string) Case {
		return bad(name, destination, mapping(O{"destination": v}))
	})
	agentFolder := each([]string{".stoker", ".stoker/", "./.stoker", ".stoker/manifest", "./.stoker/journal/"}, "the destination",
		func(name, v string) Case { return bad(name, destination, mapping(O{"destination": v})) })
	roots := each([]string{".", "./"}, "a file mapping to the root as",
		func(name, v string) Case { return bad(name, destination, mapping(O{"type": "file", "destination": v})) })
	return append(slices.Concat(accepted, sources, destinations, agentFolder, roots),
		good("a mapping with every field", mapping(O{"type": "dir", "required": true, "template": true,
			"patches": L{O{"file": "**/config.json", "set": O{"systemName": "{{.Vars.site}}-{{.PodOrdinal}}"}}}})),
		good("a destination that only begins like the agent's folder", mapping(O{"destination": ".stoker-x/a"})),
		good("a source that is called like the agent's folder", mapping(O{"source": ".stoker/a"})),
		bad("a mapping without source", source, mapping(O{"source": nil})),
		bad("a mapping without destination", destination, mapping(O{"destination": nil})),
		bad("an unknown type", mappingField+"type", mapping(O{"type": "link"})),
	)
}

func patches() []Case {
	const file, set = mappingField + "patches[0].file", mappingField + "patches[0].set"
	patch := func(p, changes O) O { // changes are those of the mapping
		all := O{"patches": L{p}}
		merge(all, changes)
		return mapping(all)
	}
	patchOf := func(file string) O { return patch(O{"file": file, "set": O{"a": "b"}}, nil) }
	patchSetting := func(values any) O { return patch(O{"file": "a", "set": values}, nil) }
	accepted := each([]string{"config.json", "**/config.json", "a/{b,c}/*.json", `a\[b.json`, "...x"}, "the patched files",
		func(name, v string) Case { return good(name, patchOf(v)) })
	refused := each([]string{"../a", "/a", "a/../b", "a//b", "a/", "./a", ".", "..", "a/./b", "a\x01", strings.Repeat("a", 513)},
		"the patched files", func(name, v string) Case { return bad(name, file, patchOf(v)) })
	keys := each([]string{"a", "a.0.b", `a\.b`, `a\#`, "a b", "ä", "a:1"}, "the path of a value",
		func(name, v string) Case { return good(name, patchSetting(O{v: "x"})) })
	badKeys := each([]string{"", "a..b", ".a", "a.", "a.#.b", "a|b", "@this", "a*", "a?b", `a\`}, "the path of a value",
		func(name, v string) Case { return goOnly(noKeys, name, set, patchSetting(O{v: "x"})) })
	withoutFile := O{"set": O{"a": "b"}}
	return append(slices.Concat(accepted, refused, keys, badKeys),
		goOnly(noPatterns, "a broken pattern of patched files", file, patchOf("a/[b")),
		good("a patch of a file mapping", patch(withoutFile, O{"type": "file", "destination": "a.json"})),
		good("a patch without files in a mapping without a type", patch(withoutFile, nil)),
		bad("a patch without files in a folder mapping", file, patch(withoutFile, O{"type": "dir"})),
		bad("a patch with files in a file mapping", file, patch(O{"file": "a", "set": O{"a": "b"}}, O{"type": "file", "destination": "x"})),
		bad("a patch that sets nothing", set, patchSetting(O{})),
		bad("a patch without set", set, patch(O{"file": "a"}, nil)),
		bad("a patch of 65 values", set, patchSetting(entries(65, ""))),
		bad("a patched value of 4097 characters", set+"[a]", patchSetting(O{"a": strings.Repeat("x", 4097)})),
		wrongType("a patched value that is a number", patchSetting(O{"a": 1})),
		bad("a list of 33 patches", mappingField+"patches", mapping(O{"patches": times(33, func(i int) any {
			return O{"file": fmt.Sprint(i), "set": O{"a": "b"}}
		})})),
	)
}
