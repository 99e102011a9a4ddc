package verdicts

import (
	"fmt"
	"maps"
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
		good("pagerduty", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"NotReady", "ScanFailed", "AutoRollbackPerformed", "ConfigSyncNotReady"}})),
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
		bad("an unknown topic", field+"topics[0]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Everything"}})),
		bad("a topic twice", field+"topics[1]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Ready", "Ready"}})),
		bad("a topic that is not an alert for pagerduty", field+"topics[0]", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"SyncCompleted"}})),
		bad("nine webhooks", "spec.alerting.webhooks", O{"alerting": O{"webhooks": times(9, func(int) any { return O{"type": "slack", "urlSecretRef": ref("url")} })}}),
	}
}

func deployment() []Case { return append(windows(), rollouts()...) }

// rollouts are the cases of stages and of the order of gateways.
func rollouts() []Case {
	stage := func(key string, value any) O {
		s := O{"name": "dev", "gateways": L{"dev-*"}}
		if s[key] = value; value == nil {
			delete(s, key)
		}
		return O{"deployment": O{"stages": L{s}}}
	}
	check := func(key string, value any) O {
		c := O{"url": "https://dev.example.com/StatusPing"}
		if c[key] = value; value == nil {
			delete(c, key)
		}
		return stage("healthCheck", c)
	}
	order := func(entries ...any) O { return O{"deployment": O{"syncOrder": entries}} }
	const (
		field    = "spec.deployment.stages[0]."
		noBundle = "a schema cannot read certificates"
	)
	dev := O{"name": "dev", "gateways": L{"dev-*"}}
	cases := each([]string{"24h1s", "8", "-8h"}, "the wait of a stage", func(name, v string) Case { return bad(name, field+"postSyncWait", stage("postSyncWait", v)) })
	cases = append(cases, each([]string{"ftp://dev", "http://", "POST http://dev", "http://user@dev/", "http://dev/ x", "http://dev/" + strings.Repeat("a", 2048)}, "the URL of a health check",
		func(name, v string) Case { return bad(name, field+"healthCheck.url", check("url", v)) })...)
	cases = append(cases, each([]string{"61s", "0s", "5"}, "the timeout of a health check", func(name, v string) Case { return bad(name, field+"healthCheck.timeout", check("timeout", v)) })...)
	return append(cases,
		good("a stage with the defaults", stage("postSyncWait", nil)),
		good("a health check with a port and a query", check("url", "https://dev.example.com:8043/StatusPing?a=b")),
		good("every field of stages and their order", O{"validation": O{"dryRunBefore": true}, "deployment": O{"stages": L{
			O{"name": "dev", "gateways": L{"dev-*", "test"}, "postSyncWait": "0s", "requireApproval": true, "healthCheck": O{"url": "https://dev.example.com/StatusPing",
				"expectedStatus": 204, "timeout": "1m", "failureThreshold": 100, "insecureSkipVerify": true}},
			O{"name": "rest", "gateways": L{"*"}, "postSyncWait": "24h"}},
			"syncOrder": L{O{"name": "hub", "weight": 1000}, O{"name": "area-*", "weight": 0}}}}),
		bad("17 stages", "spec.deployment.stages", O{"deployment": O{"stages": times(17, func(i int) any {
			return O{"name": fmt.Sprintf("s%d", i), "gateways": L{fmt.Sprintf("g%d", i)}}
		})}}),
		bad("a stage called window", field+"name", O{"deployment": O{"stages": L{O{"name": "window", "gateways": L{"dev-*"}}}}}),
		bad("two stages with one name", "spec.deployment.stages[1].name", O{"deployment": O{"stages": L{dev, O{"name": "dev", "gateways": L{"test"}}}}}),
		bad("a stage without a name", field+"name", stage("name", "")),
		bad("a name of a stage with @", field+"name", stage("name", "dev@x")),
		bad("a stage with an empty list of gateways", field+"gateways", stage("gateways", L{})),
		bad("a stage without the field gateways", field+"gateways", stage("gateways", nil)),
		bad("257 gateways of a stage", field+"gateways", stage("gateways", times(257, func(i int) any { return fmt.Sprintf("g%d", i) }))),
		bad("a broken pattern of gateways in a stage", field+"gateways[0]", stage("gateways", L{"[a"})),
		bad("a health check without a URL", field+"healthCheck.url", check("url", nil)),
		bad("an expected status of 99", field+"healthCheck.expectedStatus", check("expectedStatus", 99)),
		bad("a threshold of 101 failures", field+"healthCheck.failureThreshold", check("failureThreshold", 101)),
		goOnly(noBundle, "a bundle without a certificate", field+"healthCheck.caBundle", check("caBundle", "secret")),
		good("a gateway in two stages, of which the first counts", O{"deployment": O{"stages": L{dev, O{"name": "prod", "gateways": L{"dev-1"}}}}}),
		bad("a weight of 1001", "spec.deployment.syncOrder[0].weight", order(O{"name": "hub", "weight": 1001})),
		bad("an entry without a name", "spec.deployment.syncOrder[0].name", order(O{"weight": 1})),
		bad("two entries with one name", "spec.deployment.syncOrder[1].name", order(O{"name": "hub"}, O{"name": "hub"})),
	)
}

// windows are the cases of maintenance windows.
func windows() []Case {
	window := func(key string, value any) O {
		w := O{"name": "nights", "schedule": "0 22 * * *", "duration": "8h"}
		if w[key] = value; value == nil {
			delete(w, key)
		}
		return O{"deployment": O{"windows": L{w}}}
	}
	const field = "spec.deployment.windows[0]."
	const noClock = "a schema knows neither clocks nor time zones"
	cases := each([]string{"59s", "169h", "8", "-8h", ""}, "the duration of a window", func(name, v string) Case { return bad(name, field+"duration", window("duration", v)) })
	cases = append(cases, each([]string{"@daily", "0 22 * *", "0 22 * * * *", "TZ=UTC 0 22 * * *", strings.Repeat("1", 125) + " * * * *"}, "the schedule",
		func(name, v string) Case { return bad(name, field+"schedule", window("schedule", v)) })...)
	return append(cases,
		good("a window with the defaults", window("kind", nil)),
		good("every field of a window", O{"deployment": O{"windows": L{O{"name": "freeze", "kind": "deny", "schedule": "*/5 0-6,22 1 JAN-MAR mon", "duration": "1h30m",
			"timeZone": "America/Argentina/Buenos_Aires", "gateways": L{"area-*", "line-1"}}}}}),
		good("no windows", O{"deployment": O{}}),
		bad("a window without a name", field+"name", window("name", "")),
		bad("an unknown kind of window", field+"kind", window("kind", "maybe")),
		bad("a window without a schedule", field+"schedule", window("schedule", nil)),
		bad("a time zone that is a path", field+"timeZone", window("timeZone", "../UTC")),
		bad("a broken pattern of gateways in a window", field+"gateways[0]", window("gateways", L{"[a"})),
		bad("two windows with one name", "spec.deployment.windows[1].name", O{"deployment": O{"windows": times(2, func(int) any {
			return O{"name": "a", "schedule": "0 22 * * *", "duration": "8h"}
		})}}),
		goOnly(noClock, "the 25th hour", field+"schedule", window("schedule", "0 25 * * *")),
		goOnly(noClock, "the 30th of February", field+"schedule", window("schedule", "0 0 30 2 *")),
		goOnly(noClock, "an unknown time zone", field+"timeZone", window("timeZone", "Europe/Atlantis")),
	)
}

func timing() []Case {
	polling := func(v any) O { return O{"polling": O{"interval": v}} }
	accepted := each([]string{"60s", "1s", "1h30m", "1.5h", "24h", "500ms500ms", "90s", "86400s", "86400000ms", "0.000278h"},
		"polling every", func(name, v string) Case { return good(name, polling(v)) })
	refused := each([]string{
		"banana", "60", "-5s", "1d", "0s", "999ms", "24h1s", "1h 30m", "99999h99999h99999h99999h99999h", "99999999999999999999h", "1e3s", "5µs", " 5s", ".5s",
		strings.Repeat("1m", 17), // more than 32 characters
	}, "polling every", func(name, v string) Case { return bad(name, "spec.polling.interval", polling(v)) })
	empty := good("polling every empty text", polling(""))
	empty.CRDOnly = "the Go validation accepts an empty value, which means the default"
	key := O{"name": "a", "key": "b"}
	return append(append(accepted, refused...), empty,
		wrongType("polling every number", polling(60)),
		good("no polling", O{"polling": O{"enabled": false}}),
		wrongType("polling that is enabled by text", O{"polling": O{"enabled": "yes"}}),
		good("a progress deadline", O{"progressDeadline": "15m"}),
		bad("a progress deadline of two days", "spec.progressDeadline", O{"progressDeadline": "48h"}),
		bad("a progress deadline without a unit", "spec.progressDeadline", O{"progressDeadline": "600"}),
		good("a webhook", O{"webhook": O{"enabled": true, "secretRef": key, "followTags": L{"v*"}, "allowDowngrade": true}}),
		bad("a webhook secret without a key", "spec.webhook.secretRef.key", O{"webhook": O{"secretRef": O{"name": "a"}}}),
		bad("a list of 33 followed tags", "spec.webhook.followTags", O{"webhook": O{"followTags": times(33, func(int) any { return "v" })}}),
		goOnly(noPatterns, "a broken pattern of followed tags", "spec.webhook.followTags[0]", O{"webhook": O{"followTags": L{"{a"}}}),
	)
}

func gateways() []Case {
	gateway := func(g O) O { return O{"gateway": g} }
	key := O{"name": "a", "key": "b"}
	ports := each([]int{0, -1, 65536}, "the port", func(name string, v int) Case {
		return bad(name, "spec.gateway.port", gateway(O{"port": v}))
	})
	return append(ports,
		good("a gateway over https", gateway(O{"port": 8043, "tls": true,
			"tlsConfig": O{"caSecretRef": key, "serverName": "gw.example.com"}, "api": O{"secretName": "api"}})),
		good("an API key that the agent makes", gateway(O{"api": O{"managed": true}})),
		bad("an API key from nowhere", "spec.gateway.api", gateway(O{"api": O{}})),
		bad("an API key from a Secret and from the agent", "spec.gateway.api", gateway(O{"api": O{"managed": true, "secretName": "api"}})),
		bad("an API key with a slash in its key", "spec.gateway.api.secretKey", gateway(O{"api": O{"secretName": "a", "secretKey": "a/b"}})),
		wrongType("a port beyond 32 bits", gateway(O{"port": 99999999999})),
		wrongType("a port in quotes", gateway(O{"port": "8088"})),
		bad("a server name that is a URL", "spec.gateway.tlsConfig.serverName", gateway(O{"tlsConfig": O{"serverName": "https://gw"}})),
	)
}

func agents() []Case {
	image := func(i O) O { return O{"agent": O{"image": i}} }
	repository := func(v string) O { return image(O{"repository": v}) }
	accepted := each([]string{"agent", "stoker/agent", "localhost:5000/agent", "Registry.example.com/a_b/c__d/e--f.g"}, "the image",
		func(name, v string) Case { return good(name, repository(v)) })
	refused := each([]string{"registry/agent:1.0", "agent:1.0", "registry:5000/agent:1.0", "a@sha256:0", "a//b", "a/", "/a", "a/B", "a:b/c", "a b", "-a", "a-", strings.Repeat("a", 256)}, "the image",
		func(name, v string) Case { return bad(name, "spec.agent.image.repository", repository(v)) })
	return append(append(accepted, refused...),
		good("an image", image(O{"repository": "registry.example.com:5000/a/stoker-agent", "tag": "1.2.3",
			"digest": "sha256:" + strings.Repeat("0a", 32), "pullPolicy": "IfNotPresent"})),
		good("a set of resources", O{"agent": O{"resources": O{"requests": O{"cpu": "50m", "memory": "64Mi"}, "limits": O{"cpu": 1}}}}),
		bad("an image whose tag has a slash", "spec.agent.image.tag", image(O{"tag": "a/b"})),
		bad("an image with a short digest", "spec.agent.image.digest", image(O{"digest": "sha256:0a"})),
		bad("an unknown pull policy", "spec.agent.image.pullPolicy", image(O{"pullPolicy": "Sometimes"})),
		wrongType("a resource that is not a quantity", O{"agent": O{"resources": O{"limits": O{"cpu": "banana"}}}}),
	)
}

func storage() []Case {
	in := func(o O) O { return O{"snapshots": O{"enabled": true, "storage": o}} }
	// with returns storage of a type, with the fields of o.
	with := func(kind string, o O) O {
		all := O{"type": kind, "bucket": "backups"}
		if kind == "azure" {
			all["account"] = "plants"
		}
		maps.Copy(all, o)
		return in(all)
	}
	s3 := func(key string, value any) O { return with("s3", O{key: value}) }
	const (
		whole = "spec.snapshots.storage"
		field = whole + "."
	)
	cases := each([]string{"", "ab", "Backups", "-backups", "a/b", "plant_backups", strings.Repeat("b", 64)}, "the bucket", func(name, v string) Case { return bad(name, field+"bucket", s3("bucket", v)) })
	cases = append(cases, each([]string{"stoker", "/", "/stoker/", "../", "a/../", "a//", "a b/", strings.Repeat("a", 256) + "/"}, "the prefix",
		func(name, v string) Case { return bad(name, field+"keyPrefix", s3("keyPrefix", v)) })...)
	cases = append(cases, each([]string{"ftp://minio", "https://", "https://minio/path", "http://user:password@minio", "minio:port", "minio?x", "a b", "[::1", strings.Repeat("a", 256)}, "the endpoint",
		func(name, v string) Case { return bad(name, field+"endpoint", s3("endpoint", v)) })...)
	cases = append(cases, each([]string{"minio.example.com", "https://minio:9000", "http://minio.storage.svc:9000", "https://[fd00::1]:9000", "10.0.0.1"}, "the endpoint",
		func(name, v string) Case { return good(name, s3("endpoint", v)) })...)
	gcs := func(o O) O { return with("gcs", o) }
	key := O{"name": "gcs", "key": "key.json"}
	cases = append(cases, each([]string{"ab", "Backups", "_backups", "a/b", strings.Repeat("b", 223)}, "the bucket of GCS",
		func(name, v string) Case { return bad(name, field+"bucket", gcs(O{"bucket": v})) })...)
	cases = append(cases, each([]string{"storage.example.com", "http://storage.googleapis.com", "googleapis.com", "storage.googleapis.com.example.com", "storage.googleapis.com:8443",
		"examplegoogleapis.com", "https://x/googleapis.com", "169.254.169.254"}, "the endpoint without a Secret",
		func(name, v string) Case { return bad(name, field+"endpoint", gcs(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"storage.googleapis.com", "https://storage-plants.p.googleapis.com", "storage.europe-west3.rep.googleapis.com:443"}, "the endpoint without a Secret",
		func(name, v string) Case { return good(name, gcs(O{"endpoint": v})) })...)
	azure := func(o O) O { return with("azure", o) }
	cases = append(cases, each([]string{"", "ab", "Plants", "plants-a", strings.Repeat("a", 25)}, "the account", func(name, v string) Case { return bad(name, field+"account", azure(O{"account": v})) })...)
	cases = append(cases, each([]string{"ab", "Backups", "back--ups", "-backups", "backups-", "$root", "a.b.c", strings.Repeat("a", 64)}, "the container",
		func(name, v string) Case { return bad(name, field+"bucket", azure(O{"bucket": v})) })...)
	cases = append(cases, each([]string{"blob.example.com", "http://plants.blob.core.windows.net", "blob.core.windows.net", "plants.blob.core.windows.net.example.com", "plants.file.core.windows.net",
		"plants.blob.core.windows.net:10000", "169.254.169.254"}, "the endpoint of Azure without a Secret", func(name, v string) Case { return bad(name, field+"endpoint", azure(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"plants.blob.core.windows.net", "https://plants.blob.core.chinacloudapi.cn:443", "plants.z12.blob.storage.azure.net"}, "the endpoint of Azure without a Secret",
		func(name, v string) Case { return good(name, azure(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"s3", "gcs", "azure"}, "no bucket", func(name, v string) Case {
		o := O{"type": v}
		if v == "azure" {
			o["account"] = "plants"
		}
		return bad(name, field+"bucket", in(o))
	})...)
	return append(cases,
		good("a container of Azure", azure(O{})),
		good("every field of Azure", azure(O{"keyPrefix": "stoker/", "endpoint": "http://azurite:10000", "secretRef": key})),
		bad("an account of S3", field+"account", s3("account", "plants")),
		bad("an account of GCS", field+"account", gcs(O{"account": "plants"})),
		good("a bucket of GCS", gcs(O{})),
		good("every field of GCS", gcs(O{"bucket": "plant_backups.example.com", "keyPrefix": "stoker/", "endpoint": "http://gcs:4443", "secretRef": key})),
		good("a long name of a bucket of GCS", gcs(O{"bucket": strings.Repeat("b", 222)})),
		bad("a path in the endpoint of GCS", field+"endpoint", gcs(O{"endpoint": "gcs/path", "secretRef": key})),
		good("a backup before each sync", O{"snapshots": O{"enabled": true, "gatewayBackup": "beforeSync"}}),
		bad("an unknown value of gatewayBackup", "spec.snapshots.gatewayBackup", O{"snapshots": O{"gatewayBackup": "afterSync"}}),
		good("storage on the data volume", in(O{"type": "pvc"})),
		good("storage without a type", in(O{})),
		good("every field of S3", with("s3", O{"bucket": "plant.backups", "keyPrefix": "stoker/site-a/", "endpoint": "minio:9000", "region": "eu-central-1",
			"pathStyle": true, "secretRef": O{"name": "s3", "key": "credentials"}})),
		bad("an unknown type of storage", field+"type", with("nfs", O{})),
		bad("a bucket without a type", field+"bucket", in(O{"bucket": "backups"})),
		bad("a bucket on the data volume", field+"bucket", in(O{"type": "pvc", "bucket": "backups"})),
		bad("an account on the data volume", field+"account", in(O{"type": "pvc", "account": "plants"})),
		bad("a prefix on the data volume", whole, in(O{"type": "pvc", "keyPrefix": "stoker/"})),
		bad("an endpoint on the data volume", whole, in(O{"type": "pvc", "endpoint": "minio:9000"})),
		bad("a Secret on the data volume", whole, in(O{"type": "pvc", "secretRef": key})),
		bad("a region on the data volume", whole, in(O{"type": "pvc", "region": "eu-central-1"})),
		bad("a region of GCS", whole, gcs(O{"region": "eu-central-1"})),
		bad("path style of Azure", whole, azure(O{"pathStyle": true})),
		bad("a region in upper case", field+"region", s3("region", "EU")),
		bad("a Secret without a key", field+"secretRef.key", s3("secretRef", O{"name": "s3"})),
	)
}
