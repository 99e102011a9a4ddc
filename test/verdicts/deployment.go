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
