package verdicts

import "strings"

// noTemplates is a reason for GoOnly: git refuses the name of the branch to which a template renders.
const noTemplates = "a schema cannot render a template"

func bidirectional() []Case {
	with := func(key string, value any) O { return O{"bidirectional": O{"enabled": true, key: value}} }
	const field = "spec.bidirectional."
	badDebounces := each([]string{"999ms", "601s", "10m1s", "1h", "30", "-30s", " 30s", "99999h99999h", strings.Repeat("1s", 17)}, "the debounce",
		func(name, v string) Case { return bad(name, field+"debounce", with("debounce", v)) })
	goodDebounces := each([]string{"1s", "30s", "1m30s", "10m", "600s", "1.5m"}, "the debounce",
		func(name, v string) Case { return good(name, with("debounce", v)) })
	badBases := each([]string{
		"-x", "/main", "main/", "a b", "a..b", "a//b", "a/.b", ".a", "a.", "a.lock", "a.lock/b", "@", "a@{1}", "a~1", "a^", "a:b", "a?", "a*", "a[b",
		`a\b`, "a\nb", strings.Repeat("a", 256),
	}, "the base branch", func(name, v string) Case { return bad(name, field+"baseBranch", with("baseBranch", v)) })
	badEnums := each([]string{"conflictStrategy", "provider", "onClosed"}, "the value maybe for",
		func(name, v string) Case { return bad(name, field+v, with(v, "maybe")) })
	badAuthors := each([]string{"Jane", "Jane <jane>", "<jane@example.com>", "Jane <jane@example.com> x", "Jane <a b@example.com>", "Jane\n <jane@example.com>", "",
		strings.Repeat("a", 250) + " <a@b>"}, "the author",
		func(name, v string) Case { return bad(name, field+"authors[admin]", with("authors", O{"admin": v})) })
	empty := good("an empty debounce", with("debounce", ""))
	empty.CRDOnly = "the Go validation accepts an empty value, which means the default; only the CRD refuses it"
	zero := good("a maximum of 0 files", with("guardrails", O{"maxFilesPerPR": 0}))
	zero.CRDOnly = empty.CRDOnly
	many := func(n int) L { return times(n, func(int) any { return "a" }) }
	mapping := L{O{"source": "a", "destination": "b"}}
	cases := append(badDebounces, goodDebounces...)
	cases = append(cases, badBases...)
	cases = append(cases, badEnums...)
	cases = append(cases, badAuthors...)
	cases = append(cases, empty, zero,
		good("bidirectional sync with the defaults", O{"bidirectional": O{}}),
		good("every field of bidirectional", O{"bidirectional": O{
			"enabled": true, "watchPaths": L{"projects/**", "config/resources/{core,site}/**"}, "targetBranch": "gateways/{{ .GatewayName }}-{{.Profile}}",
			"baseBranch": "release/2026", "debounce": "1m", "prLabels": L{"gateway-change"}, "conflictStrategy": "gatewayWins",
			"guardrails": O{"maxFileSize": "512Ki", "maxTotalSize": "1048576", "maxFilesPerPR": 1000, "excludePatterns": L{"**/*.bin"}},
			"signing":    O{"format": "ssh", "keySecretRef": O{"name": "sign", "key": "id"}},
			"provider":   "gitea", "apiBaseURL": "https://git.example.com/api/v1", "authors": O{"admin": "Jane Doe <jane@example.com>"}, "onClosed": "repair",
		}}),
		good("no exclude pattern of proposals", with("guardrails", O{"excludePatterns": L{}})),
		bad("bidirectional sync with a registry", field+"enabled", O{"git": O{"repo": "oci://registry.example.com/plants/line"}, "bidirectional": O{"enabled": true}}),
		good("bidirectional sync that is off with a registry", O{"git": O{"repo": "oci://registry.example.com/plants/line"}, "bidirectional": O{"enabled": false}}),
		bad("a profile that proposes with a registry", field+"enabled", O{"git": O{"repo": "oci://registry.example.com/plants/line"},
			"bidirectional": O{"enabled": false}, "sync": O{"profiles": O{"site": O{"bidirectional": true, "mappings": mapping}}}}),
		good("bidirectional sync that every profile turns off with a registry", O{"git": O{"repo": "oci://registry.example.com/plants/line"},
			"bidirectional": O{"enabled": true}, "sync": O{"profiles": O{"site": O{"bidirectional": false, "mappings": mapping}}}}),
		good("a profile that proposes nothing", O{"bidirectional": O{"enabled": true}, "sync": O{"profiles": O{"site": O{
			"bidirectional": false, "mappings": mapping}}}}),
		wrongType("a debounce that is a number", with("debounce", 30)),
		wrongType("a size that is a number", with("guardrails", O{"maxFileSize": 1024})),
		bad("a list of 65 watched paths", field+"watchPaths", with("watchPaths", many(65))),
		bad("an empty watched path", field+"watchPaths[0]", with("watchPaths", L{""})),
		bad("a watched path of 256 characters", field+"watchPaths[0]", with("watchPaths", L{strings.Repeat("a", 256)})),
		goOnly(noPatterns, "a broken watched path", field+"watchPaths[1]", with("watchPaths", L{"a", "[b"})),
		goOnly(noPatterns, "an absolute watched path", field+"watchPaths[0]", with("watchPaths", L{"/a"})),
		bad("a target branch that is the base branch", field+"targetBranch", O{"bidirectional": O{"targetBranch": "main", "baseBranch": "main"}}),
		bad("a target branch of 256 characters", field+"targetBranch", with("targetBranch", strings.Repeat("a", 256))),
		goOnly(noTemplates, "a target branch with a space", field+"targetBranch", with("targetBranch", "a {{.Namespace}}")),
		goOnly(noTemplates, "a target branch that ends with a slash", field+"targetBranch", with("targetBranch", "{{.Namespace}}/")),
		good("a target branch of another template", with("targetBranch", "a/{{ .Namespace | lower }}")),
		goOnly("the CRD has no rule that reads spec.git together with spec.bidirectional", "a commit as ref without a base branch", field+"baseBranch",
			O{"git": O{"ref": strings.Repeat("a", 40)}, "bidirectional": O{"enabled": true}}),
		goOnly("the CRD has no rule that reads spec.git together with spec.bidirectional", "a tag as ref without a base branch", field+"baseBranch",
			O{"git": O{"ref": "refs/tags/v1"}, "bidirectional": O{"enabled": true}}),
		good("a tag as ref with a base branch", O{"git": O{"ref": "refs/tags/v1"}, "bidirectional": O{"enabled": true, "baseBranch": "main"}}),
		good("a full branch as ref without a base branch", O{"git": O{"ref": "refs/heads/main"}, "bidirectional": O{"enabled": true}}),
		good("a tag as ref while nothing is proposed", O{"git": O{"ref": "refs/tags/v1"}, "bidirectional": O{"enabled": false}}),
		bad("a list of 17 labels", field+"prLabels", with("prLabels", many(17))),
		bad("an empty label", field+"prLabels[0]", with("prLabels", L{""})),
		bad("a label of 51 characters", field+"prLabels[0]", with("prLabels", L{strings.Repeat("a", 51)})),
		bad("a file size without a number", field+"guardrails.maxFileSize", with("guardrails", O{"maxFileSize": "Mi"})),
		bad("a file size of 0", field+"guardrails.maxFileSize", with("guardrails", O{"maxFileSize": "0"})),
		bad("a total size in gigabytes", field+"guardrails.maxTotalSize", with("guardrails", O{"maxTotalSize": "1Gi"})),
		bad("a maximum of 1001 files", field+"guardrails.maxFilesPerPR", with("guardrails", O{"maxFilesPerPR": 1001})),
		bad("a negative maximum of files", field+"guardrails.maxFilesPerPR", with("guardrails", O{"maxFilesPerPR": -1})),
		bad("a list of 65 exclude patterns of proposals", field+"guardrails.excludePatterns", with("guardrails", O{"excludePatterns": many(65)})),
		goOnly(noPatterns, "a broken exclude pattern of proposals", field+"guardrails.excludePatterns[0]", with("guardrails", O{"excludePatterns": L{"{"}})),
		bad("a forge whose API is not a URL", field+"apiBaseURL", with("apiBaseURL", "git.example.com")),
		bad("a set of 257 authors", field+"authors", with("authors", entries(257, "A <a@b>"))),
		goOnly(noKeys, "an author for a user of 256 characters", field+"authors", with("authors", O{strings.Repeat("a", 256): "A <a@b>"})),
	)
	return append(cases, proposalCredentials()...)
}

func proposalCredentials() []Case {
	auth := func(a O) O { return O{"bidirectional": O{"auth": a}} }
	key := O{"name": "git", "key": "id"}
	ssh, token, app := O{"secretRef": key}, O{"secretRef": key}, O{"appId": 1, "installationId": 2, "privateKeySecretRef": key}
	const field = "spec.bidirectional.auth"
	signing := func(s O) O { return O{"bidirectional": O{"signing": s}} }
	return []Case{
		good("commits signed by ssh key", signing(O{"format": "ssh", "keySecretRef": key})),
		good("commits signed by OpenPGP key", signing(O{"format": "openpgp", "keySecretRef": key})),
		bad("a signature of another format", "spec.bidirectional.signing.format", signing(O{"format": "x509", "keySecretRef": key})),
		bad("a signature without a format", "spec.bidirectional.signing.format", signing(O{"keySecretRef": key})),
		bad("a signature without a secret", "spec.bidirectional.signing.keySecretRef.name", signing(O{"format": "ssh", "keySecretRef": O{"key": "id"}})),
		bad("a signature without a key of the secret", "spec.bidirectional.signing.keySecretRef.key", signing(O{"format": "ssh", "keySecretRef": O{"name": "sign"}})),
		good("a push by ssh key with a token for the API", auth(O{"sshKey": ssh, "token": token})),
		good("a push by token", auth(O{"token": token})),
		good("a push by GitHub App", auth(O{"githubApp": app})),
		bad("a push by GitHub App and token", field, auth(O{"githubApp": app, "token": token})),
		bad("a push by GitHub App and ssh key", field, auth(O{"githubApp": app, "sshKey": ssh})),
		bad("a push by token without a secret", field+".token.secretRef.name", auth(O{"token": O{}})),
		bad("a push by ssh key without a secret", field+".sshKey.secretRef.name", auth(O{"sshKey": O{}})),
		bad("a push by GitHub App with the number 0", field+".githubApp.appId", auth(O{"githubApp": O{"appId": 0, "installationId": 2, "privateKeySecretRef": key}})),
	}
}
