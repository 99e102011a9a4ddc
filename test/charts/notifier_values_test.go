package charts

import "testing"

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
