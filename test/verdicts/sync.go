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

func autoRollback() []Case {
	auto := func(snapshots bool, fields O) O {
		a := O{"enabled": true}
		merge(a, fields)
		return O{"autoRollback": a, "snapshots": O{"enabled": snapshots}}
	}
	rollout := O{"enabled": true, "scope": "rollout"}
	staged := func(deployment O) O { return O{"autoRollback": rollout, "deployment": deployment} }
	const field = "spec.autoRollback."
	return []Case{
		good("automatic rollback with the defaults", auto(true, nil)),
		good("every field of automatic rollback", auto(true, O{"triggers": L{"configError", "scanFailure", "projectLoadError"}, "scope": "gateway"})),
		good("automatic rollback of a rollout in stages", staged(O{"stages": L{O{"name": "dev", "gateways": L{"dev-*"}}}})),
		good("automatic rollback of a rollout in an order", staged(O{"syncOrder": L{O{"name": "dev-*"}}})),
		good("automatic rollback of a rollout after a dry run", O{"autoRollback": rollout, "validation": O{"dryRunBefore": true}}),
		good("automatic rollback of a rollout that is off", O{"autoRollback": O{"scope": "rollout"}}),
		good("automatic rollback that is off", O{"autoRollback": O{"scope": "gateway"}}),
		bad("automatic rollback without snapshots", field+"enabled", auto(false, nil)),
		bad("automatic rollback of gateways without snapshots", field+"enabled", O{"autoRollback": O{"enabled": true, "scope": "gateway"}}),
		bad("automatic rollback of a rollout without steps", field+"scope", O{"autoRollback": rollout}),
		bad("automatic rollback of a rollout without a dry run", field+"scope", O{"autoRollback": rollout, "validation": O{"dryRunBefore": false}}),
		bad("automatic rollback of a rollout with empty stages", field+"scope", staged(O{"stages": L{}, "syncOrder": L{}})),
		bad("triggers of a rollout", field+"triggers", O{"autoRollback": O{"scope": "rollout", "triggers": L{"scanFailure"}}}),
		bad("unknown trigger", field+"triggers[0]", auto(true, O{"triggers": L{"logLine"}})),
		bad("duplicate trigger", field+"triggers[1]", auto(true, O{"triggers": L{"scanFailure", "scanFailure"}})),
		bad("unknown scope", field+"scope", auto(true, O{"scope": "fleet"})),
	}
}

// validation returns the cases of spec.validation.
func validation() []Case {
	// webhook returns a webhook with one field changed, or removed if value is nil.
	webhook := func(key string, value any) O {
		w := O{"url": "https://validator.example.com/plan"}
		if w[key] = value; value == nil {
			delete(w, key)
		}
		return O{"validation": O{"webhook": w}}
	}
	const field = "spec.validation.webhook."
	ref := O{"name": "validator", "key": "hmac"}
	cases := each([]string{"https://a", "https://10.1.2.3:8443/plan?token=b", "https://[fd00::1]/", "https://a/" + strings.Repeat("a", 2038)}, "the address of a webhook",
		func(name, v string) Case { return good(name, webhook("url", v)) })
	cases = append(cases, each([]string{"", "http://a", "https://", "https:///a", "https://-a", "https://user:password@a", "https://a/#b", "https://a b", "https://a\n", "a",
		"https://a/" + strings.Repeat("a", 2039)}, "the address of a webhook", func(name, v string) Case { return bad(name, field+"url", webhook("url", v)) })...)
	cases = append(cases, each([]string{"999ms", "61s", "10", "-1s", "1h"}, "the timeout of a webhook", func(name, v string) Case { return bad(name, field+"timeout", webhook("timeout", v)) })...)
	return append(cases,
		good("no validation", O{"validation": O{}}),
		good("no check of references", O{"validation": O{"references": "ignore"}}),
		good("commits without missing references", O{"validation": O{"references": "refuse"}}),
		bad("an unknown policy for references", "spec.validation.references", O{"validation": O{"references": "off"}}),
		good("a webhook with the defaults", webhook("timeout", nil)),
		good("every field of a webhook", O{"validation": O{"webhook": O{"url": "https://a/", "timeout": "1m", "secretRef": ref, "caSecretRef": ref, "failurePolicy": "Ignore"}}}),
		bad("a webhook without an address", field+"url", webhook("url", nil)),
		bad("an unknown failure policy", field+"failurePolicy", webhook("failurePolicy", "fail")),
		bad("a reference to a Secret without a name", field+"secretRef.name", webhook("secretRef", O{"key": "a"})),
		bad("a reference to certificates without a key", field+"caSecretRef.key", webhook("caSecretRef", O{"name": "a"})),
	)
}

func alerting() []Case {
	ref := func(key string) O { return O{"name": "alerts", "key": key} }
	hook := func(w O) O { return O{"alerting": O{"enabled": true, "webhooks": L{w}}} }
	const field = "spec.alerting.webhooks[0]."
	return []Case{
		good("alerting that is empty", O{"alerting": O{}}),
		good("slack", hook(O{"type": "slack", "urlSecretRef": ref("url")})),
		good("pagerduty", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"NotReady", "ScanFailed", "AutoRollbackPerformed"}})),
		good("a webhook with a signature", hook(O{"type": "webhook", "urlSecretRef": ref("url"), "signingSecretRef": ref("key"), "topics": L{"SyncCompleted", "Ready"}})),
		good("teams with a private authority", hook(O{"type": "teams", "urlSecretRef": ref("url"), "caSecretRef": ref("ca")})),
		good("a commit status", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "caSecretRef": ref("ca"), "topics": L{}})),
		bad("a commit status without a token", field+"integrationKeySecretRef", hook(O{"type": "commit-status"})),
		bad("a commit status with a URL", field+"urlSecretRef", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "urlSecretRef": ref("url")})),
		bad("a commit status with topics", field+"topics", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "topics": L{"Ready"}})),
		bad("an authority without a key", field+"caSecretRef.key", hook(O{"type": "slack", "urlSecretRef": ref("url"), "caSecretRef": O{"name": "alerts"}})),
		bad("a webhook without a type", field+"type", hook(O{"urlSecretRef": ref("url")})),
		bad("another type", field+"type", hook(O{"type": "telegram", "urlSecretRef": ref("url")})),
		bad("slack without a URL", field+"urlSecretRef", hook(O{"type": "slack"})),
		bad("pagerduty without a key", field+"integrationKeySecretRef", hook(O{"type": "pagerduty"})),
		bad("slack with a key", field+"integrationKeySecretRef", hook(O{"type": "slack", "urlSecretRef": ref("url"), "integrationKeySecretRef": ref("key")})),
		bad("slack with a signature", field+"signingSecretRef", hook(O{"type": "slack", "urlSecretRef": ref("url"), "signingSecretRef": ref("key")})),
		bad("a Secret without a key", field+"urlSecretRef.key", hook(O{"type": "slack", "urlSecretRef": O{"name": "alerts"}})),
		bad("an unknown word", field+"topics[0]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Everything"}})),
		bad("a word twice", field+"topics[1]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Ready", "Ready"}})),
		bad("news for pagerduty", field+"topics[0]", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"SyncCompleted"}})),
		bad("nine webhooks", "spec.alerting.webhooks", O{"alerting": O{"webhooks": times(9, func(int) any { return O{"type": "slack", "urlSecretRef": ref("url")} })}}),
	}
}
