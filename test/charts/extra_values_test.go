package charts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// placementCases cover the values that say where the pods of a workload run and what they are called.
func placementCases(prefix, workload string, given values) []valueCase {
	return []valueCase{
		{prefix + ".affinity", values{"nodeAffinity": values{}}, given, []want{{workload, pod + "/affinity/nodeAffinity", values{}, gone}}},
		{prefix + ".topologySpreadConstraints", []any{values{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}}, given, []want{
			{workload, pod + "/topologySpreadConstraints/0/topologyKey", "rack", gone},
			{workload, pod + "/topologySpreadConstraints/1", gone, gone},
		}},
		{prefix + ".priorityClassName", "plant", given, []want{{workload, pod + "/priorityClassName", "plant", gone}}},
		{prefix + ".podAnnotations", values{"a": "b"}, given, []want{{workload, "spec/template/metadata/annotations/a", "b", gone}}},
		{prefix + ".podLabels", values{"a": "b"}, given, []want{{workload, "spec/template/metadata/labels/a", "b", gone}}},
	}
}

// extraCases cover what all workloads take unchanged.
func extraCases(prefix, workload string, given values) []valueCase {
	variable, mount := values{"name": "SSL_CERT_DIR", "value": "/etc/ssl/certs:/etc/plant"}, values{"name": "plant", "mountPath": "/etc/plant"}
	volume := values{"name": "plant", "configMap": values{"name": "plant"}}
	return []valueCase{
		{prefix + ".extraEnv", []any{variable}, given, []want{{workload, pod + "/containers/0/env", has{element: variable}, nil}}},
		{prefix + ".extraVolumes", []any{volume}, given, []want{{workload, pod + "/volumes", has{element: volume}, nil}}},
		{prefix + ".extraVolumeMounts", []any{mount}, with(given, set(prefix+".extraVolumes", []any{volume})), []want{{workload, pod + "/containers/0/volumeMounts", has{element: mount}, nil}}},
	}
}

var extra = slices.Concat(
	extraCases("injector", deployment, nil), extraCases("webhookReceiver", receiver, on), extraCases("notifier", notifier, onNotifier), extraCases("configSync", configSync, onConfigSync),
	placementCases("notifier", notifier, onNotifier), placementCases("configSync", configSync, onConfigSync),
	[]valueCase{
		{"webhook.port", 10250, nil, []want{
			{deployment, args, has{element: "--webhook-addr=:10250"}, has{element: "--webhook-addr=:10250", not: true}},
			{deployment, container + "/ports/webhook/containerPort", int64(10250), int64(9443)},
		}},
		{"webhook.hostNetwork", true, nil, []want{
			{deployment, pod + "/hostNetwork", true, nil}, {deployment, pod + "/dnsPolicy", "ClusterFirstWithHostNet", nil},
			// If every node has a replica, the scheduler finds no free port for one more.
			{deployment, "spec/strategy/rollingUpdate/maxSurge", int64(0), int64(1)},
			{deployment, "spec/strategy/rollingUpdate/maxUnavailable", int64(1), int64(0)},
		}},
		{"hooks.image.pullPolicy", "Always", onConfigSync, []want{{configSync, pod + "/containers/0/imagePullPolicy", "Always", gone}}},
	},
	scrapeCases("serviceMonitor", "ServiceMonitor/stoker-system/stoker-injector", "spec/endpoints/0"),
	scrapeCases("podMonitor", "PodMonitor/stoker-system/stoker-agent", "spec/podMetricsEndpoints/0"),
)

func scrapeCases(kind, monitor, endpoint string) []valueCase {
	given, relabeling := set("metrics."+kind+".enabled", true), []any{values{"action": "labeldrop", "regex": "pod"}}
	return []valueCase{
		{"metrics." + kind + ".scrapeTimeout", "20s", given, []want{{monitor, endpoint + "/scrapeTimeout", "20s", gone}}},
		{"metrics." + kind + ".relabelings", relabeling, given, []want{{monitor, endpoint + "/relabelings", relabeling, gone}}},
		{"metrics." + kind + ".metricRelabelings", relabeling, given, []want{{monitor, endpoint + "/metricRelabelings", relabeling, gone}}},
	}
}

const notifier = "Deployment/stoker-system/stoker-notifier"

var onNotifier = set("notifier.enabled", true)

// notifierCases cover the values of stoker notify.
var notifierCases = []valueCase{
	{"notifier.enabled", true, nil, []want{
		{notifier, pod + "/containers/0/image", "ghcr.io/stoker-io/hooks:0.1.0", gone},
		{"ClusterRole/stoker-notifier", "rules", []any{rule("stoker.io", "gatewaysyncs", "get", "list", "watch")}, gone},
		{"NetworkPolicy/stoker-system/stoker-notifier", "spec/policyTypes", []any{"Ingress"}, gone},
	}},
	{"notifier.replicas", 2, onNotifier, []want{{notifier, "spec/replicas", int64(2), gone}}},
	{"notifier.settle", "5m", onNotifier, []want{{notifier, pod + "/containers/0/args", has{element: "--settle=5m"}, nil}}},
	{"notifier.cluster", "north", onNotifier, []want{{notifier, pod + "/containers/0/args", has{element: "--cluster=north"}, nil}}},
	{"notifier.pageURL", "https://grafana.example.com/d/x?var-name={name}", onNotifier, []want{{notifier, pod + "/containers/0/args", has{element: "--page-url=https://grafana.example.com/d/x?var-name={name}"}, nil}}},
	{"notifier.proxy.url", "http://proxy.example.com:3128", onNotifier, []want{
		{notifier, pod + "/containers/0/env", []any{values{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}}, gone}}},
	{"notifier.proxy.noProxy", "example.com,10.0.0.0/8", with(onNotifier, set("notifier.proxy.url", "http://proxy:3128")), []want{
		{notifier, pod + "/containers/0/env", has{element: values{"name": "NO_PROXY", "value": "example.com,10.0.0.0/8"}}, nil}}},
	{"notifier.secrets", []any{values{"namespace": "line", "name": "stoker-alerts"}}, onNotifier, []want{
		{"Role/line/stoker-notifier-secrets", "rules", []any{values{"apiGroups": []any{""}, "resources": []any{"secrets"}, "resourceNames": []any{"stoker-alerts"}, "verbs": []any{"get"}}}, gone},
		{"RoleBinding/line/stoker-notifier-secrets", "subjects", []any{values{"kind": "ServiceAccount", "name": "stoker-notifier", "namespace": "stoker-system"}}, gone},
	}},
	{"notifier.logLevel", "debug", onNotifier, []want{{notifier, pod + "/containers/0/args", has{element: "--log-level=debug"}, nil}}},
	{"notifier.logFormat", "text", onNotifier, []want{{notifier, pod + "/containers/0/args", has{element: "--log-format=text"}, nil}}},
	{"notifier.resources.requests.cpu", "1", onNotifier, []want{{notifier, pod + "/containers/0/resources/requests/cpu", "1", gone}}},
	{"notifier.resources.requests.memory", "128Mi", onNotifier, []want{{notifier, pod + "/containers/0/resources/requests/memory", "128Mi", gone}}},
	{"notifier.resources.limits.memory", "1Gi", onNotifier, []want{{notifier, pod + "/containers/0/resources/limits/memory", "1Gi", gone}}},
	{"notifier.nodeSelector", values{"a": "b"}, onNotifier, []want{{notifier, pod + "/nodeSelector/a", "b", gone}}},
	{"notifier.tolerations", []any{values{"operator": "Exists"}}, onNotifier, []want{{notifier, pod + "/tolerations", []any{values{"operator": "Exists"}}, gone}}},
}

func TestNotifierInListedNamespaces(t *testing.T) {
	t.Parallel()
	found := rendered(t, with(onNotifier, set("watchNamespaces", []any{"line"}), set("watchLabelSelector", "tier=test")))
	look(t, found, notifier, pod+"/containers/0/args", has{element: "--watch-namespace=line"})
	look(t, found, notifier, pod+"/containers/0/args", has{element: "--watch-label-selector=tier=test"})
	look(t, found, "Role/line/stoker-notifier-watch", "rules", []any{rule("stoker.io", "gatewaysyncs", "get", "list", "watch")})
	look(t, found, "ClusterRole/stoker-notifier", "rules", gone)
}

const configSync = "Deployment/stoker-system/stoker-configsync"

var onConfigSync = with(set("configSync.enabled", true), set("configSync.namespaces", []any{"plant"}))

// configSyncCases cover the values of stoker config run.
var configSyncCases = []valueCase{
	{"configSync.enabled", true, set("configSync.namespaces", []any{"plant"}), []want{
		{configSync, pod + "/containers/0/image", "ghcr.io/stoker-io/hooks:0.1.0", gone},
		{"Role/plant/stoker-configsync-accounts", "rules", admitted("stoker-config"), gone},
		{"ClusterRole/stoker-configsync", "rules", []any{
			rule("stoker.io", "configsyncs", "get", "list", "watch", "patch"), rule("stoker.io", "gatewaysyncs", "get", "list", "watch"), values{"apiGroups": []any{"stoker.io"}, "resources": []any{"configsyncs/status"}, "verbs": []any{"update"}},
			rule("events.k8s.io", "events", "create"), rule("", "namespaces", "get"),
		}, gone},
		{"NetworkPolicy/stoker-system/stoker-configsync", "spec/policyTypes", []any{"Ingress"}, gone},
	}},
	{"configSync.replicas", 3, onConfigSync, []want{{configSync, "spec/replicas", int64(3), gone}}},
	{"configSync.namespaces", []any{"north", "stoker-system"}, onConfigSync, []want{
		{configSync, pod + "/containers/0/args", has{element: "--watch-namespace=north"}, nil},
		{"Role/north/stoker-configsync-accounts", "rules", admitted("stoker-config"), gone},
		{"Role/stoker-system/stoker-configsync-accounts", "rules", admitted("stoker-config"), gone},
		{"RoleBinding/north/stoker-configsync-accounts", "subjects", []any{values{"kind": "ServiceAccount", "name": "stoker-configsync", "namespace": "stoker-system"}}, gone},
	}},
	{"configSync.accounts", []any{"deployer", "site"}, onConfigSync, []want{
		{"Role/plant/stoker-configsync-accounts", "rules", admitted("deployer", "site"), gone},
	}},
	{"configSync.temporary", "2Gi", onConfigSync, []want{{configSync, pod + "/volumes/0/emptyDir/sizeLimit", "2Gi", gone}}},
	{"configSync.logLevel", "debug", onConfigSync, []want{{configSync, pod + "/containers/0/args", has{element: "--log-level=debug"}, nil}}},
	{"configSync.logFormat", "text", onConfigSync, []want{{configSync, pod + "/containers/0/args", has{element: "--log-format=text"}, nil}}},
	{"configSync.resources.requests.cpu", "1", onConfigSync, []want{{configSync, pod + "/containers/0/resources/requests/cpu", "1", gone}}},
	{"configSync.resources.requests.memory", "128Mi", onConfigSync, []want{{configSync, pod + "/containers/0/resources/requests/memory", "128Mi", gone}}},
	{"configSync.resources.limits.memory", "1Gi", onConfigSync, []want{{configSync, pod + "/containers/0/resources/limits/memory", "1Gi", gone}}},
	{"configSync.nodeSelector", values{"a": "b"}, onConfigSync, []want{{configSync, pod + "/nodeSelector/a", "b", gone}}},
	{"configSync.tolerations", []any{values{"operator": "Exists"}}, onConfigSync, []want{{configSync, pod + "/tolerations", []any{values{"operator": "Exists"}}, gone}}},
}

// admitted are the rights on the accounts of a namespace.
func admitted(accounts ...any) []any {
	return []any{rule("stoker.io", "configsyncs/finalizers", "update"),
		values{"apiGroups": []any{""}, "resources": []any{"serviceaccounts"}, "resourceNames": accounts, "verbs": []any{"impersonate"}},
	}
}

func TestConfigSyncNeedsNamespaces(t *testing.T) {
	t.Parallel()
	assert.ErrorContains(t, once(t, set("configSync.enabled", true)).err, "configSync.namespaces: name the namespaces to serve")
}
