package verdicts

import "strings"

// ConfigSyncs returns the cases of ConfigSyncs.
func ConfigSyncs() []Case {
	list := append(configSources(), configTargets()...)
	list = append(list, configPolicies()...)
	for i := range list {
		list[i].Kind = "ConfigSync"
	}
	return list
}

func configSources() []Case {
	git := func(more O) O { return O{"source": O{"git": more}} }
	follow := func(more O) O { return O{"source": O{"git": nil, "gatewaySync": more}} }
	secret := O{"name": "git"}
	const field = "spec.source.git"
	return []Case{
		good("the smallest object", nil),
		bad("no source", "spec.source", O{"source": O{"git": nil}}),
		bad("two sources", "spec.source", O{"source": O{"gatewaySync": O{"name": "line"}}}),
		good("the commit of a GatewaySync", follow(O{"name": "line", "path": "k8s", "overlays": L{"sites/a"}})),
		bad("a GatewaySync of another namespace", "spec.source.gatewaySync.name", follow(O{"name": "a/line"})),
		bad("a GatewaySync without a name", "spec.source.gatewaySync.name", follow(O{"path": "a"})),
		bad("a repository of another protocol", field+".repoURL", git(O{"repoURL": "ext::sh -c touch"})),
		bad("a repository that is an option", field+".repoURL", git(O{"repoURL": "--upload-pack=touch x"})),
		bad("a repository that is a directory", field+".repoURL", git(O{"repoURL": "/srv/git/plant.git"})),
		bad("a repository that is a file URL", field+".repoURL", git(O{"repoURL": "file:///srv/git/plant.git"})),
		bad("a repository that is a registry", field+".repoURL", git(O{"repoURL": "oci://registry.example.com/plant"})),
		good("a repository by scp's form", git(O{"repoURL": "git@git.example.com:plant.git", "authMethod": "ssh", "authSecretRef": secret})),
		bad("a missing repository", field+".repoURL", git(O{"repoURL": nil})),
		good("a template as path", git(O{"path": "clusters/{{.Vars.site}}", "overlays": L{"o/{{.Namespace}}"}})),
		bad("a path that leaves the repository", field+".path", git(O{"path": "../x"})),
		bad("an absolute path", field+".path", git(O{"path": "/etc"})),
		bad("an overlay that leaves the repository", field+".overlays[1]", git(O{"overlays": L{"a", "a/../../b"}})),
		good("excludes", git(O{"excludes": L{"projects/", "**/*.json"}})),
		bad("65 excludes", field+".excludes", git(O{"excludes": times(65, func(int) any { return "a" })})),
		bad("an empty exclude", field+".excludes[0]", git(O{"excludes": L{""}})),
		bad("17 overlays", field+".overlays", git(O{"overlays": times(17, func(int) any { return "a" })})),
		good("a branch and a commit", git(O{"branch": "main", "revision": strings.Repeat("a", 40)})),
		good("refs that a request may name", git(O{"allowedRefs": L{"main", "refs/tags/v*"}})),
		bad("65 patterns of refs", field+".allowedRefs", git(O{"allowedRefs": times(65, func(int) any { return "v*" })})),
		bad("a branch with a space", field+".branch", git(O{"branch": "a b"})),
		bad("a revision that is an option", field+".revision", git(O{"revision": "--x"})),
		good("credentials for https", git(O{"authMethod": "https", "authSecretRef": secret})),
		good("credentials for ssh", git(O{"repoURL": "ssh://git@host/a", "authMethod": "ssh", "authSecretRef": secret})),
		good("a GitHub App", git(O{"authMethod": "githubApp", "authSecretRef": secret})),
		bad("a method without a Secret", field+".authSecretRef", git(O{"authMethod": "https"})),
		bad("a Secret without a method", field+".authSecretRef", git(O{"authSecretRef": secret})),
		bad("ssh for an https address", field+".authMethod", git(O{"authMethod": "ssh", "authSecretRef": secret})),
		bad("https for an ssh address", field+".authMethod", git(O{"repoURL": "ssh://git@host/a", "authMethod": "https", "authSecretRef": secret})),
		bad("a GitHub App for scp's form", field+".authMethod", git(O{"repoURL": "git@git.example.com:plant.git", "authMethod": "githubApp", "authSecretRef": secret})),
		good("ssh for a host whose name begins with http", git(O{"repoURL": "httpd.example.com:plant.git", "authMethod": "ssh", "authSecretRef": secret})),
		good("an ssh address without credentials", git(O{"repoURL": "ssh://git@host/a", "authMethod": "none"})),
		bad("an unknown method", field+".authMethod", git(O{"authMethod": "kerberos", "authSecretRef": secret})),
		bad("a Secret of another namespace", field+".authSecretRef.name", git(O{"authMethod": "https", "authSecretRef": O{"name": "a/b"}})),
	}
}

func configTargets() []Case {
	target := func(t O) O { return O{"targets": L{t}} }
	file := O{"path": "certs/ca.pem", "key": "ca.crt"}
	const field = "spec.targets[0]"
	return []Case{
		good("a kind", target(O{"type": "ConfigMap"})),
		good("a kind with its group", target(O{"type": "StatefulSet.apps", "namespace": "site", "name": "line"})),
		good("a name of RBAC", target(O{"type": "ClusterRole.rbac.authorization.k8s.io", "name": "plant:read"})),
		bad("a target without a type", field+".type", target(O{"name": "a"})),
		bad("a kind in small letters", field+".type", target(O{"type": "configmap"})),
		bad("a namespace with a slash", field+".namespace", target(O{"type": "ConfigMap", "namespace": "a/b"})),
		bad("a name with a slash", field+".name", target(O{"type": "ConfigMap", "name": "a/b"})),
		bad("501 targets", "spec.targets", O{"targets": times(501, func(int) any { return O{"type": "ConfigMap"} })}),
		good("a ConfigMap of files", target(O{"type": "ConfigMap", "name": "ca", "fromFiles": L{file, O{"path": "a"}}})),
		bad("files without a name", field, target(O{"type": "Secret", "fromFiles": L{file}})),
		bad("files of another kind", field, target(O{"type": "Service", "name": "a", "fromFiles": L{file}})),
		bad("no files", field+".fromFiles", target(O{"type": "Secret", "name": "a", "fromFiles": L{}})),
		bad("65 files", field+".fromFiles", target(O{"type": "Secret", "name": "a", "fromFiles": times(65, func(int) any { return file })})),
		bad("a file outside", field+".fromFiles[0].path", target(O{"type": "Secret", "name": "a", "fromFiles": L{O{"path": "../a"}}})),
		bad("a key with a slash", field+".fromFiles[0].key", target(O{"type": "Secret", "name": "a", "fromFiles": L{O{"path": "a", "key": "a/b"}}})),
	}
}

func configPolicies() []Case {
	render := func(r O) O { return O{"render": r} }
	return []Case{
		good("webhooks", O{"webhook": O{"enabled": true, "secretRef": O{"name": "a", "key": "b"}, "followTags": L{"v*"}}}),
		bad("33 followed tags", "spec.webhook.followTags", O{"webhook": O{"followTags": times(33, func(int) any { return "v" })}}),
		good("a rollback on failure", O{"rollbackOnFailure": "LastGood"}),
		bad("an unknown policy for failures", "spec.rollbackOnFailure", O{"rollbackOnFailure": "Always"}),
		bad("a rollback without a wait for health", "spec.rollbackOnFailure", O{"rollbackOnFailure": "LastGood", "apply": O{"wait": false}}),
		bad("a rollback of a commit that is a GatewaySync's", "spec.rollbackOnFailure", O{"rollbackOnFailure": "LastGood", "source": O{"git": nil, "gatewaySync": O{"name": "line"}}}),
		good("dependencies", O{"dependsOn": L{O{"name": "namespaces"}, O{"kind": "GatewaySync", "name": "line"}}}),
		bad("17 dependencies", "spec.dependsOn", O{"dependsOn": times(17, func(int) any { return O{"name": "a"} })}),
		bad("a dependency of another kind", "spec.dependsOn[1].kind", O{"dependsOn": L{O{"name": "a"}, O{"kind": "Deployment", "name": "a"}}}),
		bad("a dependency without a name", "spec.dependsOn[0].name", O{"dependsOn": L{O{"kind": "GatewaySync"}}}),
		bad("a dependency of another namespace", "spec.dependsOn[0].name", O{"dependsOn": L{O{"name": "a/b"}}}),
		good("variables", render(O{"template": true, "vars": O{"site": "north"}, "varsFrom": L{O{"configMapRef": O{"name": "a"}}, O{"secretRef": O{"name": "b"}, "optional": true}}})),
		bad("129 variables", "spec.render.vars", render(O{"vars": entries(129, "x")})),
		bad("variables of two objects at once", "spec.render.varsFrom[0]", render(O{"varsFrom": L{O{"configMapRef": O{"name": "a"}, "secretRef": O{"name": "a"}}}})),
		bad("variables of no object", "spec.render.varsFrom[0]", render(O{"varsFrom": L{O{}}})),
		bad("nine objects with variables", "spec.render.varsFrom", render(O{"varsFrom": times(9, func(int) any { return O{"secretRef": O{"name": "b"}} })})),
		good("no kustomization", render(O{"kustomize": "Never"})),
		good("another cluster", O{"kubeConfig": O{"secretRef": O{"name": "edge", "key": "kube.config"}}}),
		good("another cluster, by the default key", O{"kubeConfig": O{"secretRef": O{"name": "edge"}}}),
		bad("another cluster without a Secret", "spec.kubeConfig.secretRef.name", O{"kubeConfig": O{"secretRef": O{"key": "a"}}}),
		bad("another cluster with a Secret of another namespace", "spec.kubeConfig.secretRef.name", O{"kubeConfig": O{"secretRef": O{"name": "a/b"}}}),
		bad("another cluster with a path as key", "spec.kubeConfig.secretRef.key", O{"kubeConfig": O{"secretRef": O{"name": "a", "key": "a/b"}}}),
		good("values of charts", render(O{"valuesFiles": L{"values/{{.Vars.site}}.yaml", "more.yaml"}, "releaseName": "line"})),
		bad("17 files of values", "spec.render.valuesFiles", render(O{"valuesFiles": times(17, func(int) any { return "a.yaml" })})),
		bad("a file of values elsewhere", "spec.render.valuesFiles[0]", render(O{"valuesFiles": L{"../a.yaml"}})),
		bad("a release in capitals", "spec.render.releaseName", render(O{"releaseName": "Line"})),
		bad("a long release", "spec.render.releaseName", render(O{"releaseName": strings.Repeat("a", 54)})),
		bad("kustomizations sometimes", "spec.render.kustomize", render(O{"kustomize": "Sometimes"})),
		good("all policies", O{"apply": O{"conflictPolicy": "hold", "adoptPolicy": "always", "wait": false, "dryRun": true, "driftPolicy": "report"},
			"prune": "none", "deletionPolicy": "Delete", "paused": true}),
		bad("another policy for drift", "spec.apply.driftPolicy", O{"apply": O{"driftPolicy": "ignore"}}),
		bad("another policy for deletion", "spec.deletionPolicy", O{"deletionPolicy": "Mirror"}),
		good("an account and an interval", O{"serviceAccountName": "site.deployer", "refreshInterval": "5s"}),
		bad("an account of another namespace", "spec.serviceAccountName", O{"serviceAccountName": "kube-system:default"}),
		bad("a user as account", "spec.serviceAccountName", O{"serviceAccountName": "a/b"}),
		bad("an interval of four seconds", "spec.refreshInterval", O{"refreshInterval": "4s"}),
		bad("an interval of two days", "spec.refreshInterval", O{"refreshInterval": "48h"}),
		bad("another policy for conflicts", "spec.apply.conflictPolicy", O{"apply": O{"conflictPolicy": "gatewayWins"}}),
		bad("another policy for adoption", "spec.apply.adoptPolicy", O{"apply": O{"adoptPolicy": "never"}}),
		bad("a mirror", "spec.prune", O{"prune": "mirror"}),
		bad("a deadline of two days", "spec.progressDeadline", O{"progressDeadline": "48h"}),
		{Name: "a name of 49 characters is refused", ObjectName: strings.Repeat("a", 49), Refused: "metadata.name"},
	}
}
