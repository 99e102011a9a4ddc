package charts

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourcevalue "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
)

// C15: If the operator requires a label, an editor of GatewaySyncs cannot reference a Secret without it.
func TestSecretLabelPolicy(t *testing.T) {
	t.Parallel()
	s := newServer(t, kubetest.Private())
	for _, o := range rendered(t, set("admissionPolicies.mountableSecretLabel", "example.com/for=gateways")) {
		if o.GetName() == "stoker-secrets" || o.GetName() == "stoker-edit" {
			_, err := s.apply(t.Context(), o, false)
			require.NoError(t, err)
		}
	}
	p := &plant{server: s, namespace: s.Namespace(t)}
	accounts(t, s, p.namespace, "editor")
	p.bind(t, "stoker-edit", "editor")
	// setup: creates the Secrets
	for name, labels := range map[string]map[string]string{"mine": {"example.com/for": "gateways"}, "theirs": nil, "other": {"example.com/for": "databases"}} {
		_, err := p.core.CoreV1().Secrets(p.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	syncs := p.as(t, p.As(t, p.namespace, "editor", ""), "gatewaysyncs")
	naming := func(spec string) *object {
		return parseOne(t, "apiVersion: stoker.io/v1alpha1\nkind: GatewaySync\nmetadata: {name: plant}\nspec: "+spec+"\n")
	}
	with := func(name string) *object {
		return naming(`{git: {repo: "https://git.example.com/a.git", ref: main, auth: {token: {secretRef: {name: ` + name + `, key: k}}}}}`)
	}
	create := func(o *object) error {
		_, err := syncs.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, name := range []string{"theirs", "other"} {
		require.Eventually(t, func() bool { return apierrors.IsForbidden(create(with(name))) }, eventually, pause)
		denied(t, create(with(name)), "stoker-secrets", "Secret "+name+" lacks the label example.com/for=gateways")
	}
	assert.NoError(t, create(with("mine")))
	assert.NoError(t, create(with("absent")))

	places := map[string]string{
		"ssh key":                `{git: {repo: "git@git.example.com:a.git", ref: main, auth: {sshKey: {secretRef: {name: theirs, key: k}}}}}`,
		"known hosts":            `{git: {repo: "git@git.example.com:a.git", ref: main, auth: {sshKey: {secretRef: {name: mine, key: k}, knownHosts: {secretRef: {name: theirs, key: k}}}}}}`,
		"GitHub App":             `{git: {repo: "https://github.com/a/b.git", ref: main, auth: {githubApp: {appId: 1, installationId: 1, privateKeySecretRef: {name: theirs, key: k}}}}}`,
		"git CA":                 `{git: {repo: "https://git.example.com/a.git", ref: main, caSecretRef: {name: theirs, key: k}}}`,
		"API token":              `{git: {repo: "https://git.example.com/a.git", ref: main}, gateway: {api: {secretName: theirs}}}`,
		"keys of signed commits": `{git: {repo: "https://git.example.com/a.git", ref: main, verify: {keysSecretRef: {name: theirs, key: k}}}}`,
		"key of a webhook":       `{git: {repo: "https://git.example.com/a.git", ref: main}, validation: {webhook: {url: "https://a/", secretRef: {name: theirs, key: k}}}}`,
		"CA of a webhook":        `{git: {repo: "https://git.example.com/a.git", ref: main}, validation: {webhook: {url: "https://a/", caSecretRef: {name: theirs, key: k}}}}`,
		"gateway CA":             `{git: {repo: "https://git.example.com/a.git", ref: main}, gateway: {tls: true, tlsConfig: {caSecretRef: {name: theirs, key: k}}}}`,
	}
	for name, webhook := range map[string]string{
		"URL of an alert webhook":         `{type: slack, urlSecretRef: {name: theirs, key: k}}`,
		"PagerDuty integration key":       `{type: pagerduty, integrationKeySecretRef: {name: theirs, key: k}}`,
		"authority of an alert webhook":   `{type: slack, urlSecretRef: {name: mine, key: k}, caSecretRef: {name: theirs, key: k}}`,
		"signing key of an alert webhook": `{type: webhook, urlSecretRef: {name: mine, key: k}, signingSecretRef: {name: theirs, key: k}}`,
	} {
		places[name] = `{git: {repo: "https://github.com/a/b.git", ref: main}, alerting: {webhooks: [{type: slack, urlSecretRef: {name: mine, key: k}}, ` + webhook + `]}}`
	}
	places["credentials of object storage"] = `{git: {repo: "https://github.com/a/b.git", ref: main}, snapshots: {enabled: true, storage: {type: s3, bucket: plants, secretRef: {name: theirs, key: k}}}}`
	for name, auth := range map[string]string{
		"ssh key of proposals":     `{sshKey: {secretRef: {name: theirs, key: k}}}`,
		"known hosts of proposals": `{sshKey: {secretRef: {name: mine, key: k}, knownHosts: {secretRef: {name: theirs, key: k}}}}`,
		"token of proposals":       `{token: {secretRef: {name: theirs, key: k}}}`,
		"GitHub App of proposals":  `{githubApp: {appId: 1, installationId: 1, privateKeySecretRef: {name: theirs, key: k}}}`,
	} {
		places[name] = `{git: {repo: "https://github.com/a/b.git", ref: main}, bidirectional: {auth: ` + auth + `}}`
	}
	places["signing key of proposals"] = `{git: {repo: "https://github.com/a/b.git", ref: main}, bidirectional: {signing: {format: ssh, keySecretRef: {name: theirs, key: k}}}}`
	places["token"] = `{git: {repo: "https://git.example.com/a.git", ref: main, auth: {token: {secretRef: {name: theirs, key: k}}}}}`
	require.Len(t, places, references(reflect.TypeFor[v1alpha1.GatewaySyncSpec]())-2, "every reference must have a case, except spec.webhook and the ConfigMap")
	for name, spec := range places {
		t.Run(name, func(t *testing.T) { denied(t, create(naming(spec)), "stoker-secrets", "Secret theirs lacks the label") })
	}
	t.Run("reference from before the policy", func(t *testing.T) {
		made, err := syncs.Create(t.Context(), with("later"), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = p.core.CoreV1().Secrets(p.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = syncs.Patch(t.Context(), made.GetName(), types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
		assert.NoError(t, err)
		_, err = syncs.Patch(t.Context(), made.GetName(), types.MergePatchType, []byte(`{"spec":{"git":{"caSecretRef":{"name":"theirs","key":"k"}}}}`), metav1.PatchOptions{})
		denied(t, err, "stoker-secrets", "Secret theirs lacks the label")
	})
}

// references counts the fields of a type that reference a Secret or a ConfigMap.
func references(in reflect.Type) int {
	switch in.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return references(in.Elem())
	case reflect.Struct:
	default:
		return 0
	}
	if in == reflect.TypeFor[v1alpha1.SecretKeyRef]() {
		return 1
	}
	n := 0
	for i := range in.NumField() {
		if in.Field(i).Name == "SecretName" {
			n++
		}
		n += references(in.Field(i).Type)
	}
	return n
}

// additions are patches that an agent's token could disturb others with: they make objects impossible to
// delete or make them grow.
var additions = map[string]string{
	"finalizer":            `{"metadata":{"finalizers":["example.com/stays"]}}`,
	"annotation":           `{"metadata":{"annotations":{"note":"mine"}}}`,
	"annotation of Stoker": `{"metadata":{"annotations":{"stoker.io/requested-ref":"v2"}}}`,
	"label":                `{"metadata":{"labels":{"note":"mine"}}}`,
}

// target returns a SyncTarget like the one that the lead of a GatewaySync creates.
func target(gs *object, name string) *object {
	o := &object{Object: map[string]any{
		"apiVersion": "stoker.io/v1alpha1", "kind": "SyncTarget", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"format": int64(1), "refName": "refs/heads/main"},
	}}
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "stoker.io/v1alpha1", Kind: "GatewaySync", Name: gs.GetName(), UID: gs.GetUID()}})
	return o
}

// C11: The token of an agent cannot flood the API server or prevent the deletion of objects.
func TestSyncTargetPolicy(t *testing.T) {
	t.Parallel()
	p := policed(t)
	gs, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	targets := p.agent(t, 0, "synctargets")
	patch := func(body string) error {
		_, err := targets.Patch(t.Context(), "plant", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	t.Run("refused creation", func(t *testing.T) {
		named := func(change func(*object)) *object {
			o := target(gs, "plant")
			change(o)
			return o
		}
		for name, c := range map[string]struct {
			object *object
			words  string
		}{
			"another name":   {target(gs, "invented"), "named after"},
			"no owner":       {named(func(o *object) { o.SetOwnerReferences(nil) }), "named after"},
			"owned by a pod": {named(func(o *object) { o.SetOwnerReferences(report("plant", p.pods[0]).GetOwnerReferences()) }), "named after"},
			"second owner": {named(func(o *object) {
				o.SetOwnerReferences(append(o.GetOwnerReferences(), report("", p.pods[0]).GetOwnerReferences()...))
			}), "named after"},
			"finalizer":             {named(func(o *object) { o.SetFinalizers([]string{"example.com/stays"}) }), "no finalizer"},
			"annotation":            {named(func(o *object) { o.SetAnnotations(map[string]string{"a": "b"}) }), "no finalizer"},
			"label":                 {named(func(o *object) { o.SetLabels(map[string]string{"a": "b"}) }), "no finalizer"},
			"ref of a pull request": {named(func(o *object) { o.Object["spec"].(map[string]any)["refName"] = "refs/pull/1/head" }), "is a branch or a tag"},
			"HEAD":                  {named(func(o *object) { o.Object["spec"].(map[string]any)["refName"] = "HEAD" }), "is a branch or a tag"},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := targets.Create(t.Context(), c.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				denied(t, err, "stoker-synctargets", c.words)
			})
		}
		t.Run("token without pod", func(t *testing.T) {
			_, err := p.as(t, p.As(t, p.namespace, "gateway", ""), "synctargets").Create(t.Context(), target(gs, "plant"), metav1.CreateOptions{})
			denied(t, err, "stoker-synctargets", "tokens that are bound to these pods")
		})
		t.Run("server-side apply", func(t *testing.T) {
			_, err := targets.Apply(t.Context(), "plant", target(gs, "plant"), metav1.ApplyOptions{FieldManager: "stoker-agent"})
			denied(t, err, "stoker-synctargets", "server-side apply")
		})
	})
	t.Run("lead creates and updates its target", func(t *testing.T) {
		made, err := targets.Create(t.Context(), target(gs, "plant"), metav1.CreateOptions{FieldManager: "stoker-agent"})
		require.NoError(t, err)
		made.Object["spec"].(map[string]any)["lead"] = map[string]any{"holder": "line-0_abc", "durationSeconds": int64(15)}
		_, err = targets.Update(t.Context(), made, metav1.UpdateOptions{FieldManager: "stoker-agent"})
		require.NoError(t, err)
		assert.NoError(t, patch(`{"spec":{"refName":"refs/tags/v2"}}`))
		assert.NoError(t, patch(`{"spec":{"refName":null}}`))
	})
	t.Run("refused change", func(t *testing.T) {
		for name, body := range additions {
			t.Run(name, func(t *testing.T) { denied(t, patch(body), "stoker-synctargets", "no finalizer") })
		}
		t.Run("another owner", func(t *testing.T) {
			denied(t, patch(`{"metadata":{"ownerReferences":[]}}`), "stoker-synctargets", "named after")
		})
		t.Run("ref of a pull request", func(t *testing.T) {
			denied(t, patch(`{"spec":{"refName":"refs/pull/1/head"}}`), "stoker-synctargets", "is a branch or a tag")
		})
		t.Run("server-side apply", func(t *testing.T) {
			_, err := targets.Apply(t.Context(), "plant", target(gs, "plant"), metav1.ApplyOptions{FieldManager: "stoker-agent", Force: true})
			denied(t, err, "stoker-synctargets", "server-side apply")
		})
		t.Run("token without pod", func(t *testing.T) {
			_, err := p.as(t, p.As(t, p.namespace, "gateway", ""), "synctargets").Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
			denied(t, err, "stoker-synctargets", "tokens that are bound to these pods")
		})
	})
	t.Run("additions of an administrator stay", func(t *testing.T) {
		root := p.as(t, p.RESTConfig(), "synctargets")
		_, err := root.Patch(t.Context(), "plant", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"note":"theirs"},"labels":{"a":"b"},"finalizers":["example.com/stays"],"ownerReferences":[]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = root.Apply(t.Context(), "plant", parseOne(t, "apiVersion: stoker.io/v1alpha1\nkind: SyncTarget\nmetadata: {name: plant, labels: {c: d}}\n"), metav1.ApplyOptions{FieldManager: "admin"})
		require.NoError(t, err)
		assert.NoError(t, patch(`{"spec":{"paused":true}}`))
		denied(t, patch(`{"metadata":{"annotations":{"note":"mine"}}}`), "stoker-synctargets", "no finalizer")
		assert.NoError(t, patch(mustJSON(t, map[string]any{"metadata": map[string]any{"ownerReferences": target(gs, "plant").GetOwnerReferences()}})))
		_, err = root.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	t.Run("report", func(t *testing.T) {
		reports := p.agent(t, 0, "syncreports")
		_, err := reports.Create(t.Context(), report("line-0", p.pods[0]), metav1.CreateOptions{})
		require.NoError(t, err)
		for name, body := range additions {
			t.Run(name, func(t *testing.T) {
				_, err := reports.Patch(t.Context(), "line-0", types.MergePatchType, []byte(body), metav1.PatchOptions{})
				denied(t, err, "stoker-syncreports", "no finalizer")
			})
		}
		t.Run("server-side apply", func(t *testing.T) {
			_, err := reports.Apply(t.Context(), "line-0", report("line-0", p.pods[0]), metav1.ApplyOptions{FieldManager: "stoker-agent", Force: true})
			denied(t, err, "stoker-syncreports", "server-side apply")
		})
	})
	t.Run("quota", func(t *testing.T) {
		quotas := p.core.CoreV1().ResourceQuotas(p.namespace)
		_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "stoker"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/synctargets.stoker.io": resourcevalue.MustParse("1")}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		absent := gs.DeepCopy()
		absent.SetName("one-more")
		require.Eventually(t, func() bool {
			_, err = targets.Create(t.Context(), target(absent, "one-more"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && strings.Contains(err.Error(), "exceeded quota: stoker")
		}, eventually, pause)
		assert.NoError(t, patch(`{"spec":{"paused":false}}`))
		require.NoError(t, quotas.Delete(t.Context(), "stoker", metav1.DeleteOptions{}))
		require.Eventually(t, func() bool {
			_, err = targets.Create(t.Context(), target(absent, "one-more"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil
		}, eventually, pause)
	})
	t.Run("garbage collection", func(t *testing.T) {
		absent := gs.DeepCopy()
		absent.SetName("absent")
		absent.SetUID("00000000-0000-0000-0000-000000000000")
		_, err := targets.Create(t.Context(), target(absent, "absent"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := targets.Get(t.Context(), "absent", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, eventually, pause)
	})
}

// C5: a setter may patch ConfigSyncs, and not update them. So the policy stoker-gatewaysyncs, which is also about ConfigSyncs, lets it
// change annotations of requests only. stoker config run may not update ConfigSyncs either. The policy lets it set their
// finalizer in the namespaces that it serves, and remove it elsewhere to end a deletion.
func TestConfigSyncRequestRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	_, err := p.as(t, p.RESTConfig(), "configsyncs").Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant, annotations: {note: theirs}}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git"}}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	p.rightsOf(t, "configsync", with(set("configSync.enabled", true), set("configSync.namespaces", []any{p.namespace})))
	const finalizer = `{"metadata":{"finalizers":["stoker.io/configsync"]}}`
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	try := func(in, who, patch string) error {
		_, err := p.as(t, p.As(t, in, who, ""), "configsyncs").Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		return err
	}
	const annotations = `{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-over":"v2@HEAD","stoker.io/paused":"true"}}}`
	require.NoError(t, try(p.namespace, "setter", annotations))
	for _, patch := range []string{
		`{"spec":{"serviceAccountName":"other"}}`, `{"spec":{"source":{"git":{"branch":"main"}}}}`, `{"metadata":{"annotations":{"note":"mine"}}}`,
		`{"metadata":{"labels":{"a":"b"}}}`, finalizer,
	} {
		denied(t, try(p.namespace, "setter", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
		assert.NoError(t, try(p.namespace, "editor", patch), patch)
	}
	for _, patch := range []string{annotations, finalizer} {
		assert.NoError(t, try(namespace, "stoker-configsync", patch), patch)
	}
	for _, patch := range []string{
		`{"spec":{"serviceAccountName":"other"}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"stoker.io/prune":"disabled"}}}`,
		`{"metadata":{"finalizers":["stoker.io/configsync"]},"spec":{"paused":true}}`,
	} {
		denied(t, try(namespace, "stoker-configsync", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	}
	// The caller of stoker config apply, with the rights that docs/how-to/config.md names.
	accounts(t, p.server, p.namespace, "caller")
	p.ApplyYAML(t, p.namespace, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: caller}
rules:
  - {apiGroups: [stoker.io], resources: [configsyncs/status], verbs: [update]}
  - {apiGroups: [stoker.io], resources: [configsyncs], verbs: [get, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: caller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: caller}
subjects: [{kind: ServiceAccount, name: caller}]`)
	require.Eventually(t, func() bool {
		return try(p.namespace, "caller", `{"metadata":{"annotations":{"note":"theirs"}}}`) == nil
	}, eventually, pause)
	assert.NoError(t, try(p.namespace, "caller", annotations))
	for _, patch := range []string{`{"spec":{"paused":true}}`, `{"metadata":{"annotations":{"note":"mine"}}}`, finalizer} {
		denied(t, try(p.namespace, "caller", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	}

	elsewhere := newPlant(t, p.server)
	admin := elsewhere.as(t, p.RESTConfig(), "configsyncs")
	_, err = admin.Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant, finalizers: [stoker.io/configsync]}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git"}}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	other := elsewhere.as(t, p.As(t, namespace, "stoker-configsync", ""), "configsyncs")
	for _, patch := range []string{annotations, `{"metadata":{"finalizers":[]}}`} {
		_, err := other.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		denied(t, err, "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	}
	require.NoError(t, admin.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	_, err = other.Patch(t.Context(), "plant", types.MergePatchType, []byte(annotations), dry)
	denied(t, err, "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	_, err = other.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
	require.NoError(t, err, "it ends a deletion, also in a namespace that is not served any more")
}

// C21: one table says which annotations setters may change; the policy and the page have the same.
func TestSetterAnnotations(t *testing.T) {
	t.Parallel()
	policy := rendered(t, nil)["ValidatingAdmissionPolicy/stoker-gatewaysyncs"]
	require.NotNil(t, policy)
	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	require.NoError(t, err)
	listed := regexp.MustCompile(`'(stoker\.io/[a-z-]+)'`).FindAllStringSubmatch(variables[0].(map[string]any)["expression"].(string), -1)
	var inPolicy, setters, all, page []string
	for _, m := range listed {
		inPolicy = append(inPolicy, m[1])
	}
	for _, a := range v1alpha1.RequestAnnotations() {
		all = append(all, a.Name)
		if a.Writer != v1alpha1.WriterEditor { // annotations of approvers, too: for these, another policy requires the verb approve
			setters = append(setters, a.Name)
		}
	}
	assert.Equal(t, setters, inPolicy)
	b, err := os.ReadFile("../../docs/reference/gatewaysync.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(b), "\n## Annotations of a GatewaySync\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `(stoker\\.io/[a-z-]+)`").FindAllStringSubmatch(table, -1) {
		page = append(page, m[1])
	}
	assert.ElementsMatch(t, page, all)
}

// C21: a setter marks no object of a ConfigSync, approves no deletion, restores no snapshot, and leaves no large annotations.
func TestSettersChangeRequestsOnly(t *testing.T) {
	t.Parallel()
	p := policed(t)
	setter, editor := p.as(t, p.As(t, p.namespace, "setter", ""), "gatewaysyncs"), p.as(t, p.As(t, p.namespace, "editor", ""), "gatewaysyncs")
	patch := func(annotations map[string]any) []byte {
		return []byte(mustJSON(t, map[string]any{"metadata": map[string]any{"annotations": annotations}}))
	}
	_, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/configsync": p.namespace + "/site"}), metav1.PatchOptions{})
	require.NoError(t, err)
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	for _, a := range v1alpha1.RequestAnnotations() {
		if a.Writer == v1alpha1.WriterApprover {
			continue
		}
		_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{a.Name: "x"}), dry)
		if a.Writer == v1alpha1.WriterSetter {
			assert.NoError(t, err, a.Name)
		} else {
			denied(t, err, "stoker-gatewaysyncs", "it may change annotations of requests")
		}
		_, err = editor.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{a.Name: "x"}), dry)
		assert.NoError(t, err, a.Name)
	}
	for name, change := range map[string]map[string]any{
		"mark removed": {"stoker.io/configsync": nil}, "not pruned": {"stoker.io/prune": "disabled"}, "unknown": {"stoker.io/unknown": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, patch(change), dry)
			denied(t, err, "stoker-gatewaysyncs", "it may change annotations of requests")
		})
	}
	large := strings.Repeat("x", 8<<10)
	_, err = setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/requested-ids": large, "stoker.io/requested-tags": large}), dry)
	require.NoError(t, err)
	_, err = setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/requested-ids": large, "stoker.io/requested-tags": large, "stoker.io/force-sync": large + "x"}), dry)
	denied(t, err, "stoker-gatewaysyncs", "at most 24576 characters in annotations of requests")
}
