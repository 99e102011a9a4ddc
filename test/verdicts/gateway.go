package verdicts

import "strings"

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
