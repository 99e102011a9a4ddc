package charts

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// want is the expected value at a path of a rendered object, with the values of a case and with the
// defaults of the chart. A nil otherwise is not compared.
type want struct {
	object, path    string
	then, otherwise any
}

// values returns the values of an installation for the case.
func (c valueCase) values() values { return with(c.given, set(c.path, c.value)) }

// gone is the expected value if the object is not rendered, or does not have the path.
const gone = "the object is not there"

// valueCase describes the effect of one value. given holds other values that the effect needs.
type valueCase struct {
	path  string
	value any
	given values
	wants []want
}

const (
	injectorCheck  = "Pod/stoker-system/stoker-check"
	deployment     = "Deployment/stoker-system/stoker-injector"
	pod            = "spec/template/spec"
	container      = pod + "/containers/injector"
	args           = container + "/args"
	agentImage     = "spec/template/metadata/annotations/stoker.io~image-of-agents" // --agent-image refers to it as AGENT_IMAGE
	webhooks       = "MutatingWebhookConfiguration/stoker-injector"
	injectorRole   = "ClusterRole/stoker-injector"
	injectorPolicy = "NetworkPolicy/stoker-system/stoker-injector"
	certificate    = "Certificate/stoker-system/stoker-injector"
	authority      = "Certificate/stoker-system/stoker-injector-authority"
	grafana        = "ConfigMap/stoker-system/stoker-dashboards"
	alertRules     = "PrometheusRule/stoker-system/stoker"
	gatewaysyncs   = "CustomResourceDefinition/gatewaysyncs.stoker.io"
	sha            = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// has expects a list to contain an element, or a string to contain a substring. If not is set, it must
// not.
type has struct {
	element any
	not     bool
}

var peers = []any{map[string]any{"ipBlock": map[string]any{"cidr": "192.0.2.0/24"}}}

// valueCases covers every key of values.yaml, which TestEveryValueHasACase checks.
var valueCases = slices.Concat(injectorCases, receiverCases, notifierCases, configSyncCases, askingCases, extra)

// injectorCases cover the values of the injector and of the whole chart.
var injectorCases = []valueCase{
	{"commonLabels", values{"team": "north"}, nil, []want{
		{deployment, "metadata/labels/team", "north", nil},
		{gatewaysyncs, "metadata/labels/team", "north", nil},
		{"ClusterRole/stoker-agent", "metadata/labels/team", "north", nil},
	}},
	{"image.registry", "registry.example.com/stoker", nil, []want{
		{deployment, container + "/image", "registry.example.com/stoker/injector:0.1.0", "ghcr.io/stoker-io/injector:0.1.0"},
		{deployment, agentImage, "registry.example.com/stoker/agent:0.1.0", "ghcr.io/stoker-io/agent:0.1.0"},
	}},
	{"image.tag", "1.2.3", nil, []want{
		{deployment, container + "/image", "ghcr.io/stoker-io/injector:1.2.3", "ghcr.io/stoker-io/injector:0.1.0"},
		{deployment, agentImage, "ghcr.io/stoker-io/agent:1.2.3", nil},
	}},
	{"image.digest", sha, nil, []want{
		{deployment, container + "/image", "ghcr.io/stoker-io/injector@" + sha, "ghcr.io/stoker-io/injector:0.1.0"},
		{deployment, agentImage, "ghcr.io/stoker-io/agent:0.1.0", nil},
	}},
	{"image.pullPolicy", "Never", nil, []want{{deployment, container + "/imagePullPolicy", "Never", "IfNotPresent"}}},
	{"imagePullSecrets", []any{values{"name": "registry"}}, nil, []want{
		{deployment, pod + "/imagePullSecrets/0/name", "registry", gone},
	}},
	{"agentImage.repository", "registry.example.com/agent", nil, []want{
		{deployment, agentImage, "registry.example.com/agent:0.1.0", nil},
		{deployment, container + "/image", "ghcr.io/stoker-io/injector:0.1.0", nil},
	}},
	{"agentImage.tag", "1.2.3", nil, []want{{deployment, agentImage, "ghcr.io/stoker-io/agent:1.2.3", nil}}},
	{"agentImage.digest", sha, nil, []want{{deployment, agentImage, "ghcr.io/stoker-io/agent@" + sha, nil}}},
	{"agentImage.pullPolicy", "Always", nil, []want{
		{deployment, args, has{element: "--agent-image-pull-policy=Always"}, has{element: "--agent-image-pull-policy=IfNotPresent"}},
	}},
	{"agentResources.requests.cpu", "50m", nil, []want{
		{deployment, args, has{element: `--agent-resources={"limits":{"memory":"512Mi"},"requests":{"cpu":"50m","memory":"64Mi"}}`},
			has{element: `--agent-resources={"limits":{"memory":"512Mi"},"requests":{"cpu":"20m","memory":"64Mi"}}`}},
	}},
	{"agentResources.requests.memory", "100Mi", nil, []want{
		{deployment, args, has{element: `--agent-resources={"limits":{"memory":"512Mi"},"requests":{"cpu":"20m","memory":"100Mi"}}`}, nil},
	}},
	{"agentResources.limits.memory", "1Gi", nil, []want{
		{deployment, args, has{element: `--agent-resources={"limits":{"memory":"1Gi"},"requests":{"cpu":"20m","memory":"64Mi"}}`}, nil},
	}},
	{"agentEnv", values{"NO_PROXY": "git.example.com,10.0.0.0/8", "HTTPS_PROXY": "http://proxy.example.com:3128"}, nil, []want{
		{deployment, args, has{element: "--agent-env=HTTPS_PROXY=http://proxy.example.com:3128"}, has{element: "--agent-env=HTTPS_PROXY=http://proxy.example.com:3128", not: true}},
		{deployment, args, has{element: "--agent-env=NO_PROXY=git.example.com,10.0.0.0/8"}, nil},
	}},
	{"agentArgs", []any{"--max-blob=1GiB", "--lost-found-age=2160h"}, nil, []want{
		{deployment, args, has{element: "--agent-arg=--max-blob=1GiB"}, has{element: "--agent-arg=--max-blob=1GiB", not: true}},
		{deployment, args, has{element: "--agent-arg=--lost-found-age=2160h"}, nil},
	}},
	{"crds.install", false, nil, []want{{gatewaysyncs, "kind", gone, "CustomResourceDefinition"}}},
	{"crds.keep", false, nil, []want{{gatewaysyncs, "metadata/annotations/helm.sh~resource-policy", nil, "keep"}}},
	{"watchNamespaces", []any{"north", "south"}, on, []want{
		{receiver, receiverArgs, has{element: "--watch-namespace=north"}, gone},
		{deployment, args, has{element: "--watch-namespace=south"}, has{element: "--watch-namespace=south", not: true}},
		{webhooks, "webhooks/0/namespaceSelector/matchExpressions/1/values", has{element: "north"}, has{element: "north", not: true}},
		{webhooks, "webhooks/1/namespaceSelector/matchExpressions/1/values", has{element: "south"}, nil},
		{injectorRole, "rules/1", gone, nil},
		{"Role/north/stoker-injector-watch", "rules/0/resourceNames/0", "north", gone},
		{"RoleBinding/south/stoker-injector-watch", "subjects/0/namespace", namespace, gone},
	}},
	{"watchLabelSelector", "team=north", nil, []want{
		{deployment, args, has{element: "--watch-label-selector=team=north"}, has{element: "--watch-label-selector=", not: true}},
	}},
	{"defaults.polling.interval", "5m", nil, []want{
		{gatewaysyncs, "spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/polling/properties/interval/default", "5m", "60s"},
	}},
	{"webhook.replicas", 3, nil, []want{{deployment, "spec/replicas", int64(3), int64(2)}}},
	{"webhook.namespaceSelector.requireLabel", true, nil, []want{
		{webhooks, "webhooks/0/namespaceSelector/matchExpressions/1", values{"key": "stoker.io/injection", "operator": "In", "values": []any{"enabled"}},
			values{"key": "stoker.io/injection", "operator": "NotIn", "values": []any{"disabled"}}},
		{webhooks, "webhooks/1/namespaceSelector/matchExpressions/1/operator", "In", "NotIn"},
		{deployment, args, has{element: "--require-namespace-label=true"}, has{element: "--require-namespace-label=false"}},
	}},
	{"webhook.timeoutSeconds", 5, nil, []want{
		{webhooks, "webhooks/0/timeoutSeconds", int64(5), int64(2)}, {webhooks, "webhooks/1/timeoutSeconds", int64(5), int64(2)},
	}},
	{"webhook.allowAgentImages", []any{"registry.example.com/agent"}, nil, []want{
		{deployment, args, has{element: "--allow-agent-image=registry.example.com/agent"}, has{element: "--allow-agent-image=registry.example.com/agent", not: true}},
	}},
	{"webhook.certManager.enabled", true, nil, []want{
		{certificate, "spec/issuerRef/name", "stoker-injector", gone},
		{certificate, "spec/dnsNames", has{element: "stoker-injector.stoker-system.svc"}, gone},
		{"Issuer/stoker-system/stoker-injector", "spec/ca/secretName", "stoker-injector-authority", gone},
		{authority, "spec/secretName", "stoker-injector-authority", gone},
		{authority, "spec/isCA", true, gone},
		{authority, "spec/privateKey/rotationPolicy", "Never", gone},
		{certificate, "spec/secretName", "stoker-injector-tls", gone},
		{webhooks, "metadata/annotations/cert-manager.io~inject-ca-from", "stoker-system/stoker-injector", nil},
		{deployment, pod + "/volumes/certificate/secret/secretName", "stoker-injector-tls", "stoker-injector-cert"},
		{renewal, "kind", gone, "CronJob"},
		{"Secret/stoker-system/stoker-injector-cert", "kind", gone, "Secret"},
		{"ServiceAccount/stoker-system/stoker-certificate", "kind", gone, "ServiceAccount"},
		{"ClusterRole/stoker-certificate", "kind", gone, "ClusterRole"},
		{"Role/stoker-system/stoker-certificate", "kind", gone, "Role"},
	}},
	{"webhook.certManager.issuerRef", values{"name": "plant", "kind": "ClusterIssuer"}, set("webhook.certManager.enabled", true), []want{
		{certificate, "spec/issuerRef", values{"name": "plant", "kind": "ClusterIssuer"}, gone},
		{"Issuer/stoker-system/stoker-injector", "kind", gone, gone},
		{"Issuer/stoker-system/stoker-injector-authority", "kind", gone, gone},
		{authority, "kind", gone, gone},
	}},
	{"webhook.existingSecret", "mine", set("webhook.caBundle", "Q0E="), []want{
		{deployment, pod + "/volumes/certificate/secret/secretName", "mine", "stoker-injector-cert"},
		{renewal, "kind", gone, "CronJob"},
	}},
	{"webhook.caBundle", "Q0E=", set("webhook.existingSecret", "mine"), []want{
		{webhooks, "webhooks/0/clientConfig/caBundle", "Q0E=", nil}, {webhooks, "webhooks/1/clientConfig/caBundle", "Q0E=", nil},
	}},
	{"injector.repair", "report", nil, []want{
		{deployment, args, has{element: "--repair=report"}, has{element: "--repair=evict"}},
		{injectorRole, "rules", has{element: rule("", "pods/eviction", "create"), not: true}, has{element: rule("", "pods/eviction", "create")}},
	}},
	{"injector.logLevel", "debug", nil, []want{{deployment, args, has{element: "--log-level=debug"}, has{element: "--log-level=info"}}}},
	{"injector.logFormat", "text", nil, []want{{deployment, args, has{element: "--log-format=text"}, has{element: "--log-format=json"}}}},
	{"injector.extraArgs", []any{"--log-level=warn"}, nil, []want{{deployment, args, has{element: "--log-level=warn"}, has{element: "--log-level=warn", not: true}}}},
	{"injector.resources.requests.cpu", "50m", nil, []want{{deployment, container + "/resources/requests/cpu", "50m", "20m"}}},
	{"injector.resources.requests.memory", "100Mi", nil, []want{{deployment, container + "/resources/requests/memory", "100Mi", "64Mi"}}},
	{"injector.resources.limits.memory", "1Gi", nil, []want{{deployment, container + "/resources/limits/memory", "1Gi", "256Mi"}, {injectorCheck, "spec/containers/0/resources/limits/memory", "1Gi", "256Mi"}}},
	{"injector.nodeSelector", values{"zone": "a"}, nil, []want{
		{deployment, pod + "/nodeSelector/zone", "a", gone}, {injectorCheck, "spec/nodeSelector/zone", "a", gone},
		{renewal, "spec/jobTemplate/spec/template/spec/nodeSelector/zone", "a", gone},
	}},
	{"injector.tolerations", []any{values{"operator": "Exists"}}, nil, []want{
		{deployment, pod + "/tolerations/0/operator", "Exists", gone}, {injectorCheck, "spec/tolerations/0/operator", "Exists", gone},
		{renewal, "spec/jobTemplate/spec/template/spec/tolerations/0/operator", "Exists", gone},
	}},
	{"injector.affinity", values{"nodeAffinity": values{}}, nil, []want{{deployment, pod + "/affinity/nodeAffinity", values{}, gone}}},
	{"injector.topologySpreadConstraints", []any{values{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}}, nil, []want{
		{deployment, pod + "/topologySpreadConstraints/0/topologyKey", "rack", "kubernetes.io/hostname"},
		{deployment, pod + "/topologySpreadConstraints/1", gone, nil},
	}},
	{"injector.priorityClassName", "system-cluster-critical", nil, []want{{deployment, pod + "/priorityClassName", "system-cluster-critical", nil}}},
	{"injector.podAnnotations", values{"a": "b"}, nil, []want{{deployment, "spec/template/metadata/annotations/a", "b", gone}}},
	{"injector.podLabels", values{"a": "b"}, nil, []want{
		{deployment, "spec/template/metadata/labels/a", "b", nil}, {deployment, "spec/selector/matchLabels/a", nil, nil},
	}},
	{"serviceAccount.annotations", values{"a": "b"}, nil, []want{{"ServiceAccount/stoker-system/stoker-injector", "metadata/annotations/a", "b", gone}}},
	{"rbac.autoBindAgent.enabled", false, nil, []want{
		{deployment, args, has{element: "--auto-bind-agent=false"}, has{element: "--auto-bind-agent=true"}},
		{injectorRole, "rules", has{element: rule("rbac.authorization.k8s.io", "rolebindings", "list", "create"), not: true},
			has{element: rule("rbac.authorization.k8s.io", "rolebindings", "list", "create")}},
	}},
	{"rbac.aggregateToDefaultRoles", false, nil, []want{
		{"ClusterRole/stoker-view", "metadata/labels/rbac.authorization.k8s.io~aggregate-to-view", gone, "true"},
		{"ClusterRole/stoker-edit", "metadata/labels/rbac.authorization.k8s.io~aggregate-to-edit", gone, "true"},
		// Users bind these roles by name, as in docs/how-to/kargo.md.
		{"ClusterRole/stoker-view", "rules/0/verbs", []any{"get", "list", "watch"}, []any{"get", "list", "watch"}},
		{"ClusterRole/stoker-edit", "rules/0/resources", []any{"gatewaysyncs", "configsyncs"}, []any{"gatewaysyncs", "configsyncs"}},
		{"ClusterRole/stoker-setter", "kind", "ClusterRole", "ClusterRole"},
	}},
	{"admissionPolicies.enabled", false, nil, []want{
		{"ValidatingAdmissionPolicy/stoker-syncreports", "kind", gone, "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding/stoker-syncreports", "spec/policyName", gone, "stoker-syncreports"},
		{"ValidatingAdmissionPolicy/stoker-synctargets", "kind", gone, "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding/stoker-synctargets", "spec/policyName", gone, "stoker-synctargets"},
		{"ValidatingAdmissionPolicy/stoker-gatewaysyncs", "kind", gone, "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding/stoker-gatewaysyncs", "spec/policyName", gone, "stoker-gatewaysyncs"},
		{"ValidatingAdmissionPolicy/stoker-approvals", "kind", gone, "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding/stoker-approvals", "spec/policyName", gone, "stoker-approvals"},
		{"ValidatingAdmissionPolicy/stoker-rolebindings", "kind", gone, "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding/stoker-rolebindings", "spec/policyName", gone, "stoker-rolebindings"},
	}},
	{"admissionPolicies.mountableSecretLabel", "example.com/for=gateways", nil, []want{
		{"ValidatingAdmissionPolicyBinding/stoker-secrets", "spec/paramRef/selector/matchExpressions/0",
			values{"key": "example.com/for", "operator": "NotIn", "values": []any{"gateways"}}, gone},
		{"ValidatingAdmissionPolicy/stoker-secrets", "spec/paramKind/kind", "Secret", gone},
	}},
	{"networkPolicy.enabled", false, nil, []want{
		{injectorPolicy, "spec/ingress", gone, []any{ingress("webhook", nil), ingress("metrics", nil), ingress("health", nil)}},
		{injectorPolicy, "spec/policyTypes", gone, []any{"Ingress"}},
	}},
	{"networkPolicy.webhookFrom", peers, nil, []want{
		{injectorPolicy, "spec/ingress", []any{ingress("webhook", peers), ingress("metrics", nil), ingress("health", nil)}, nil},
	}},
	{"networkPolicy.metricsFrom", peers, nil, []want{
		{injectorPolicy, "spec/ingress", []any{ingress("webhook", nil), ingress("metrics", peers), ingress("health", nil)}, nil},
	}},
	{"metrics.serviceMonitor.enabled", true, nil, []want{{"ServiceMonitor/stoker-system/stoker-injector", "spec/endpoints/0/port", "metrics", gone}}},
	{"metrics.serviceMonitor.interval", "10s", set("metrics.serviceMonitor.enabled", true), []want{
		{"ServiceMonitor/stoker-system/stoker-injector", "spec/endpoints/0/interval", "10s", gone},
	}},
	{"metrics.serviceMonitor.labels", values{"release": "prometheus"}, set("metrics.serviceMonitor.enabled", true), []want{
		{"ServiceMonitor/stoker-system/stoker-injector", "metadata/labels/release", "prometheus", gone},
	}},
	{"metrics.podMonitor.enabled", true, nil, []want{
		{"PodMonitor/stoker-system/stoker-agent", "spec/podMetricsEndpoints/0/port", "stoker-metrics", gone},
		{"PodMonitor/stoker-system/stoker-agent", "spec/namespaceSelector/any", true, gone},
	}},
	{"metrics.podMonitor.interval", "10s", set("metrics.podMonitor.enabled", true), []want{
		{"PodMonitor/stoker-system/stoker-agent", "spec/podMetricsEndpoints/0/interval", "10s", gone},
	}},
	{"metrics.podMonitor.labels", values{"release": "prometheus"}, set("metrics.podMonitor.enabled", true), []want{
		{"PodMonitor/stoker-system/stoker-agent", "metadata/labels/release", "prometheus", gone},
	}},
	{"metrics.rules.enabled", true, nil, []want{{alertRules, "spec/groups/0/name", "stoker", gone}}},
	{"metrics.rules.labels", values{"release": "prometheus"}, set("metrics.rules.enabled", true), []want{{alertRules, "metadata/labels/release", "prometheus", gone}}},
	{"metrics.rules.behindFor", "1h", set("metrics.rules.enabled", true), []want{
		{alertRules, "spec/groups/0/rules/2/alert", "StokerGatewaysBehind", gone},
		{alertRules, "spec/groups/0/rules/2/for", "1h", gone},
	}},
	{"metrics.rules.severities", values{"StokerGatewaysBehind": "page"}, set("metrics.rules.enabled", true), []want{
		{alertRules, "spec/groups/0/rules/2/labels/severity", "page", gone},
		{alertRules, "spec/groups/0/rules/1/labels/severity", "warning", gone},
	}},
	{"metrics.dashboards.enabled", true, nil, []want{{grafana, "metadata/labels/app.kubernetes.io~name", "stoker", gone}}},
	{"metrics.dashboards.label", "found-by", set("metrics.dashboards.enabled", true), []want{{grafana, "metadata/labels/found-by", "1", gone}}},
	{"metrics.dashboards.labelValue", "yes", set("metrics.dashboards.enabled", true), []want{{grafana, "metadata/labels/grafana_dashboard", "yes", gone}}},
	{"metrics.dashboards.annotations", values{"grafana_folder": "Plants"}, set("metrics.dashboards.enabled", true), []want{
		{grafana, "metadata/annotations/grafana_folder", "Plants", gone},
	}},
}

func rule(group, resource string, verbs ...any) values {
	return values{"apiGroups": []any{group}, "resources": []any{resource}, "verbs": verbs}
}

func ingress(port string, from []any) values {
	in := values{"ports": []any{values{"port": port, "protocol": "TCP"}}}
	if from != nil {
		in["from"] = from
	}
	return in
}

func TestEveryValueHasAnEffect(t *testing.T) {
	t.Parallel()
	defaults := all(t, nil)
	for _, c := range valueCases {
		t.Run(c.path, func(t *testing.T) {
			changed := all(t, c.values())
			for _, w := range c.wants {
				look(t, changed, w.object, w.path, w.then)
				if w.otherwise != nil {
					look(t, defaults, w.object, w.path, w.otherwise)
				}
			}
		})
	}
}

func look(t *testing.T, in objects, object, path string, want any) {
	t.Helper()
	o, there := in[object]
	var got any
	if there {
		got, there = at(o.Object, path)
	}
	switch want := want.(type) {
	case has:
		require.True(t, there, "%s %s", object, path)
		if text, ok := got.(string); ok {
			assert.Equal(t, !want.not, strings.Contains(text, want.element.(string)), "%s %s: %v in %s", object, path, want.element, text)
			return
		}
		assert.Equal(t, !want.not, slices.ContainsFunc(got.([]any), func(e any) bool { return assert.ObjectsAreEqual(want.element, e) }),
			"%s %s: %v in %v", object, path, want.element, got)
	case string:
		if want == gone {
			assert.False(t, there, "%s %s is %v", object, path, got)
			return
		}
		assert.Equal(t, want, got, "%s %s", object, path)
	default:
		assert.Equal(t, want, got, "%s %s", object, path)
	}
}

// leaves returns the keys of values.yaml: every path whose value is not a non-empty map.
func leaves(t testing.TB) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	all := values{}
	require.NoError(t, yaml.Unmarshal(data, &all))
	found := map[string]any{}
	var walk func(prefix string, in values)
	walk = func(prefix string, in values) {
		for k, v := range in {
			if m, ok := v.(map[string]any); ok && len(m) > 0 {
				walk(prefix+k+".", m)
				continue
			}
			found[prefix+k] = v
		}
	}
	walk("", all)
	return found
}

func TestEveryValueHasACase(t *testing.T) {
	t.Parallel()
	var covered []string
	for _, c := range valueCases {
		covered = append(covered, c.path)
		require.NotEmpty(t, c.wants, c.path)
	}
	slices.Sort(covered)
	assert.Equal(t, slices.Sorted(maps.Keys(leaves(t))), covered)
}

// Argo CD renders repeatedly and without a cluster. Output that changes between runs would be a permanent
// difference.
func TestRenderingIsReproducible(t *testing.T) {
	t.Parallel()
	again, err := renderOn("v1.34.4", nil)
	require.NoError(t, err)
	assert.Equal(t, rendered(t, nil), parse(t, []byte(again.Manifest)))
	for _, template := range theChart(t).Templates {
		if template.Name == "templates/NOTES.txt" { // only Helm prints it
			continue
		}
		for _, function := range []string{"lookup", "rand", "gen", "now", "uuid", "derivePassword", "htpasswd", "bcrypt", "getHostByName", ".Capabilities", ".Release.IsInstall", ".Release.IsUpgrade", ".Release.Revision"} {
			for action := range actions(string(template.Data)) {
				for _, word := range strings.FieldsFunc(action, func(r rune) bool { return strings.ContainsRune(" ()|{}-\n\t", r) }) {
					assert.False(t, strings.HasPrefix(word, function) && !strings.HasPrefix(word, "nindent"), "%s: %s", template.Name, action)
				}
			}
		}
	}
	for name, o := range rendered(t, nil) {
		if strings.HasPrefix(name, "Secret/") {
			assert.NotContains(t, o.Object, "data", "%s: a program fills it in", name)
			assert.NotContains(t, o.Object, "stringData", "%s: a program fills it in", name)
		}
	}
}

// actions yields the text between {{ and }}, without comments.
func actions(template string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for {
			_, rest, ok := strings.Cut(template, "{{")
			if !ok {
				return
			}
			action, after, _ := strings.Cut(rest, "}}")
			if !strings.Contains(action, "/*") && !yield(action) {
				return
			}
			template = after
		}
	}
}
