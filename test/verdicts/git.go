package verdicts

import "strings"

func names() []Case {
	name := func(about, name, refused string) Case {
		return Case{Name: about, ObjectName: name, Refused: refused}
	}
	return []Case{
		good("the smallest object", nil),
		good("an unknown field", O{"colour": "green", "sync": O{"defaults": O{"colour": "red"}}}),
		name("a name of 48 characters is accepted", strings.Repeat("a", 48), ""),
		name("a name of 49 characters is refused", strings.Repeat("a", 49), "metadata.name"),
		name("a name in capitals is refused", "Plant", "metadata.name"),
		name("a name with a slash is refused", "a/b", "metadata.name"),
	}
}

func repositories() []Case {
	repo := func(v any) O { return O{"git": O{"repo": v}} }
	accepted := each([]string{
		"https://git.example.com/a/b.git", "http://git.example.com/a", "https://[::1]:8443/a",
		"https://user@git.example.com/a", "https://user:password@git.example.com/a",
		"ssh://git@git.example.com:2222/a.git", "ssh://[::1]/a",
		"git@git.example.com:a/b.git", "git@[::1]:a/b", "git.example.com:a/b", "git@git.example.com:/srv/a.git",
		"file:///srv/git/a b.git", "/srv/git/a b.git",
		"oci://registry.example.com/plants/line", "oci://[::1]:5000/a__b/c-d.e", "oci+http://registry.example.com:5000/a", "oci.example.com:a/b",
	}, "the repository", func(name, v string) Case { return good(name, repo(v)) })
	refused := each([]string{
		"", "-uhost", "--upload-pack=touch x", "ext::sh -c touch", "ext::sh", "/", "//host/a", "file:///", "../a", "host",
		"file://host/a", "https://", "https:///a", "https://-x/a", "ssh://-oProxyCommand=x/a",
		"git@-x:a", "git@host:-a", "git@host:/-a", "ftp://host/a", "git://host/a", "a://b:c",
		"https://host/a?token=b", "https://host?b", "https://host/a#b", "ssh://git@host/a?b",
		"oci://", "oci://host", "oci:///a", "oci://host/", "oci://host/a/", "oci://host/A", "oci://host/a:tag", "oci://host/a@sha256:b", "oci://user:password@host/a",
		"oci+ssh://host/a", "oci://host/a?b", "oci://host/a#b", "oci://-x/a", "oci://host/../a",
		"https://host/a b", "https://host/a\nb", "https://host/\x01", "https://h/" + strings.Repeat("a", 2039),
	}, "the repository", func(name, v string) Case { return bad(name, "spec.git.repo", repo(v)) })
	return append(append(accepted, refused...), bad("a missing repository", "spec.git.repo", repo(nil)))
}

func refs() []Case {
	ref := func(v any) O { return O{"git": O{"ref": v}} }
	accepted := each([]string{
		"main", "v1.2.3", "1.10", "release/2026", "refs/heads/main", "refs/tags/v1", "HEAD", "feature@x", "@x", "a.b",
		"sha256:" + strings.Repeat("0a", 32), "x.lockx", "ä", "0123456789abcdef0123456789abcdef01234567", strings.Repeat("ä", 255),
	}, "the ref", func(name, v string) Case { return good(name, ref(v)) })
	refused := each([]string{
		"", "-x", "--upload-pack=x", "/main", "main/", "a b", "a..b", "..", "a//b", "a/.b", ".a", "a.", "a.lock", "a.lock/b", "@", "a@{1}",
		"sha256:0a", "sha512:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("0A", 32), "a~1", "a^", "a:b", "a?", "a*", "a[b", `a\b`, "a\tb", "a\nb", "a\x7f", "refs/heads/../../x", strings.Repeat("a", 256),
	}, "the ref", func(name, v string) Case { return bad(name, "spec.git.ref", ref(v)) })
	allowed := func(v any) O { return O{"git": O{"allowedRefs": v}} }
	return append(append(accepted, refused...),
		bad("a missing ref", "spec.git.ref", ref(nil)),
		wrongType("a ref that is a number", ref(1.10)),
		good("a list of allowed refs", allowed(L{"main", "release/*", "refs/tags/v{1,2}.*"})),
		bad("an empty allowed ref", "spec.git.allowedRefs[1]", allowed(L{"main", ""})),
		bad("a list of 65 allowed refs", "spec.git.allowedRefs", allowed(times(65, func(int) any { return "a" }))),
		goOnly(noPatterns, "a broken pattern of allowed refs", "spec.git.allowedRefs[0]", allowed(L{"a["})),
	)
}

func credentials() []Case {
	auth := func(a O) O { return O{"git": O{"auth": a}} }
	key := O{"name": "git", "key": "id"}
	ssh := O{"secretRef": key}
	token := O{"secretRef": key}
	app := func(more O) O {
		a := O{"appId": 1, "installationId": 2, "privateKeySecretRef": key}
		merge(a, more)
		return a
	}
	const field = "spec.git.auth"
	return []Case{
		good("an ssh key", auth(O{"sshKey": ssh})),
		good("an ssh key with known hosts", auth(O{"sshKey": O{"secretRef": key, "knownHosts": O{"secretRef": key}, "insecureIgnoreHostKey": false}})),
		good("a token", auth(O{"token": token})),
		good("a token with a user name", auth(O{"token": O{"secretRef": key, "username": "oauth2"}})),
		good("a GitHub App", auth(O{"githubApp": app(O{"apiBaseURL": "https://github.example.com/api/v3"})})),
		good("a bundle of certificates", O{"git": O{"caSecretRef": key}}),
		bad("a bundle of certificates without a name", "spec.git.caSecretRef.name", O{"git": O{"caSecretRef": O{"key": "a"}}}),
		bad("an ssh key beside a token", field, auth(O{"sshKey": ssh, "token": token})),
		bad("a GitHub App beside a token", field, auth(O{"githubApp": app(nil), "token": token})),
		bad("all three kinds of credentials together", field, auth(O{"githubApp": app(nil), "token": token, "sshKey": ssh})),
		bad("a user name with a colon", field+".token.username", auth(O{"token": O{"secretRef": key, "username": "a:b"}})),
		bad("a token without a secret", field+".token.secretRef.name", auth(O{"token": O{}})),
		bad("an ssh key without a secret", field+".sshKey.secretRef.name", auth(O{"sshKey": O{}})),
		bad("known hosts without a secret", field+".sshKey.knownHosts.secretRef.name", auth(O{"sshKey": O{"secretRef": key, "knownHosts": O{}}})),
		bad("a secret without a key", field+".token.secretRef.key", auth(O{"token": O{"secretRef": O{"name": "a"}}})),
		bad("a secret of another namespace", field+".token.secretRef.name", auth(O{"token": O{"secretRef": O{"name": "other/git", "key": "k"}}})),
		bad("a secret key with a slash", field+".token.secretRef.key", auth(O{"token": O{"secretRef": O{"name": "git", "key": "../k"}}})),
		bad("a GitHub App with the number 0", field+".githubApp.appId", auth(O{"githubApp": app(O{"appId": 0})})),
		bad("a GitHub App with a negative installation", field+".githubApp.installationId", auth(O{"githubApp": app(O{"installationId": -1})})),
		bad("a GitHub App whose API is not a URL", field+".githubApp.apiBaseURL", auth(O{"githubApp": app(O{"apiBaseURL": "github.example.com"})})),
		wrongType("a GitHub App whose number is text", auth(O{"githubApp": app(O{"appId": "1"})})),
		good("a token for a registry", artifacts(O{"auth": O{"token": O{"secretRef": O{"name": "pull", "key": ".dockerconfigjson"}}}})),
		bad("an ssh key for a registry", field, artifacts(O{"auth": O{"sshKey": ssh}})),
		bad("a GitHub App for a registry", field, artifacts(O{"auth": O{"githubApp": app(nil)}})),
	}
}

func signatures() []Case {
	verify := func(v O) O { return O{"git": O{"verify": v}} }
	const field = "spec.git.verify"
	keys := O{"name": "authors", "key": "keys"}
	return []Case{
		good("signed commits with keys in a Secret", verify(O{"keysSecretRef": keys})),
		good("signed tags with keys in a ConfigMap", verify(O{"mode": "Tag", "keysConfigMapRef": keys, "formats": L{"openpgp", "ssh"}})),
		bad("signed commits without keys", field, verify(O{"mode": "Head"})),
		bad("signed commits with keys in two places", field, verify(O{"keysSecretRef": keys, "keysConfigMapRef": keys})),
		bad("another mode of signatures", field+".mode", verify(O{"mode": "head", "keysSecretRef": keys})),
		bad("keys in a ConfigMap without a name", field+".keysConfigMapRef.name", verify(O{"keysConfigMapRef": O{"key": "keys"}})),
		bad("keys in a Secret without a key", field+".keysSecretRef.key", verify(O{"keysSecretRef": O{"name": "authors"}})),
		bad("another format of signatures", field+".formats[0]", verify(O{"keysSecretRef": keys, "formats": L{"x509"}})),
		bad("an empty format of signatures", field+".formats[0]", verify(O{"keysSecretRef": keys, "formats": L{""}})),
		bad("a format of signatures twice", field+".formats[1]", verify(O{"keysSecretRef": keys, "formats": L{"ssh", "ssh"}})),
		good("signed artifacts of a registry", artifacts(O{"verify": O{"keysSecretRef": keys}})),
		bad("signed tags of a registry", field, artifacts(O{"verify": O{"keysSecretRef": keys, "mode": "Tag"}})),
		bad("three formats of signatures", field+".formats", verify(O{"keysSecretRef": keys, "formats": L{"ssh", "ssh", "openpgp"}})),
	}
}

// artifacts returns a spec whose repository is a registry.
func artifacts(git O) O {
	git["repo"] = "oci://registry.example.com/plants/line"
	return O{"git": git}
}
