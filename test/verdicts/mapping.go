package verdicts

import (
	"fmt"
	"slices"
	"strings"
)

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
