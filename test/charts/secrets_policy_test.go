package charts

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// references counts the fields of a type that reference a Secret.
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
