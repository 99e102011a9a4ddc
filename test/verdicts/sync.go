package verdicts

import (
	"fmt"
	"slices"
	"strings"
)

func defaults() []Case {
	d := func(key string, value any) O { return O{"sync": O{"defaults": O{key: value}}} }
	const field = "spec.sync.defaults."
	periods := each([]int{4, 3601, 0, -30}, "the sync period", func(name string, v int) Case {
		return bad(name, field+"syncPeriod", d("syncPeriod", v))
	})
	policies := each([]string{
		"designerSessionPolicy", "designerSessionScope", "conflictPolicy", "driftPolicy", "prune", "startup",
	}, "the value maybe for", func(name, v string) Case { return bad(name, field+v, d(v, "maybe")) })
	excludes := each([]string{"/a", "/", "//", "{a,b,c,d,e,f,g,h,i}{a,b,c,d,e,f,g,h,i}"}, "the exclude pattern",
		func(name, v string) Case {
			return goOnly(noPatterns, name, field+"excludePatterns[0]", d("excludePatterns", L{v}))
		})
	return append(slices.Concat(periods, policies, excludes),
		good("an exclude pattern of 512 characters", d("excludePatterns", L{strings.Repeat("ä", 512)})),
		good("a variable that is null", d("vars", O{"n": nil})),
		good("every default", O{"sync": O{"defaults": O{
			"excludePatterns": L{"**/*.bak", "docs/", "{a,b}/**"}, "vars": O{"site": "north", "a-b/c": ""}, "syncPeriod": 3600,
			"designerSessionPolicy": "wait", "designerSessionScope": "gateway", "conflictPolicy": "hold", "driftPolicy": "repair",
			"prune": "mirror", "startup": "wait", "dryRun": true, "paused": true}}}),
		wrongType("a sync period with a unit", d("syncPeriod", "30s")),
		bad("an empty exclude pattern", field+"excludePatterns[0]", d("excludePatterns", L{""})),
		bad("an exclude pattern of 513 characters", field+"excludePatterns[0]", d("excludePatterns", L{strings.Repeat("a", 513)})),
		bad("a list of 129 exclude patterns", field+"excludePatterns", d("excludePatterns", times(129, func(int) any { return "a" }))),
		goOnly(noPatterns, "a broken exclude pattern", field+"excludePatterns[1]", d("excludePatterns", L{"a", "[b"})),
		wrongType("a variable that is a number", d("vars", O{"n": 1})),
		bad("a variable of 4097 characters", field+"vars[n]", d("vars", O{"n": strings.Repeat("a", 4097)})),
		bad("a set of 129 variables", field+"vars", d("vars", entries(129, ""))),
		goOnly(noKeys, "a variable with a name of 129 characters", field+"vars", d("vars", O{strings.Repeat("a", 129): "x"})),
		goOnly(noKeys, "a variable without a name", field+"vars", d("vars", O{"": "x"})),
	)
}

func profiles() []Case {
	all := func(p any) O { return O{"sync": O{"profiles": p}} }
	mapping := O{"source": "a", "destination": "b"}
	with := func(key string, value any) O { return all(O{"site": O{"mappings": L{mapping}, key: value}}) }
	const field = "spec.sync.profiles[site]."
	policies := each([]string{
		"designerSessionPolicy", "designerSessionScope", "conflictPolicy", "driftPolicy", "prune", "startup",
	}, "a profile's value Maybe for", func(name, v string) Case { return bad(name, field+v, with(v, "Maybe")) })
	many := times(64, func(j int) any {
		return O{"source": fmt.Sprint("s", j), "destination": fmt.Sprint("d", j), "type": "dir",
			"patches": times(4, func(k int) any { return O{"file": fmt.Sprint("f", k), "set": O{"a": "b"}} })}
	})
	return append(policies,
		good("a profile with every override", all(O{"site": O{
			"mappings":        L{mapping},
			"excludePatterns": L{"x"}, "vars": O{"a": "b"}, "syncPeriod": 5, "designerSessionPolicy": "fail",
			"designerSessionScope": "project", "conflictPolicy": "gatewayWins", "driftPolicy": "report", "prune": "none",
			"startup": "useExisting", "dryRun": false, "paused": false}})),
		good("a set of 64 profiles with many mappings", all(entries(64, O{"mappings": many}))),
		bad("a set of 65 profiles", "spec.sync.profiles", all(entries(65, O{"mappings": L{mapping}}))),
		wrongType("a list of profiles", all(L{O{"name": "site"}})),
		bad("a profile without mappings", field+"mappings", all(O{"site": O{}})),
		bad("a profile with an empty list of mappings", field+"mappings", all(O{"site": O{"mappings": L{}}})),
		bad("a profile with 65 mappings", field+"mappings", all(O{"site": O{"mappings": times(65, func(int) any { return mapping })}})),
		goOnly("a schema does not look from a mapping at what prunes it", "a mirror of the whole data directory", field+"mappings[0].destination",
			all(O{"site": O{"prune": "mirror", "mappings": L{O{"source": "a", "destination": "."}}}})),
		good("a mirror of one file", all(O{"site": O{"prune": "mirror", "mappings": L{O{"source": "a", "destination": "a", "type": "file"}}}})),
		goOnly(noKeys, "a profile whose name has a space", "spec.sync.profiles[my site]", all(O{"my site": O{"mappings": L{mapping}}})),
		bad("a profile's sync period of 0", field+"syncPeriod", with("syncPeriod", 0)),
		goOnly(noPatterns, "a profile's broken exclude pattern", field+"excludePatterns[0]", with("excludePatterns", L{"{"})),
	)
}
