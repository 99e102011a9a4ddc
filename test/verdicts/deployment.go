package verdicts

import (
	"fmt"
	"strings"
)

func deployment() []Case { return append(windows(), rollouts()...) }

// rollouts are the cases of stages, of the order of gateways and of validation.
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
		bad("a stage without gateways", field+"gateways", stage("gateways", L{})),
		bad("a stage that leaves gateways out", field+"gateways", stage("gateways", nil)),
		bad("257 gateways of a stage", field+"gateways", stage("gateways", times(257, func(i int) any { return fmt.Sprintf("g%d", i) }))),
		bad("a gateway of a stage", field+"gateways[0]", stage("gateways", L{"[a"})),
		bad("a health check without a URL", field+"healthCheck.url", check("url", nil)),
		bad("a status that is not one", field+"healthCheck.expectedStatus", check("expectedStatus", 99)),
		bad("too many failures", field+"healthCheck.failureThreshold", check("failureThreshold", 101)),
		goOnly(noBundle, "a bundle without a certificate", field+"healthCheck.caBundle", check("caBundle", "secret")),
		good("a gateway in two stages, of which the first counts", O{"deployment": O{"stages": L{dev, O{"name": "prod", "gateways": L{"dev-1"}}}}}),
		bad("a weight of an entry", "spec.deployment.syncOrder[0].weight", order(O{"name": "hub", "weight": 1001})),
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
		bad("a kind of window", field+"kind", window("kind", "maybe")),
		bad("a window without a schedule", field+"schedule", window("schedule", nil)),
		bad("a time zone that is a path", field+"timeZone", window("timeZone", "../UTC")),
		bad("a gateway of a window", field+"gateways[0]", window("gateways", L{"[a"})),
		bad("windows with one name", "spec.deployment.windows[1].name", O{"deployment": O{"windows": times(2, func(int) any {
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
