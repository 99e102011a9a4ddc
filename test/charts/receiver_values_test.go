package charts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

const (
	receiver          = "Deployment/stoker-system/stoker-receiver"
	receiverContainer = pod + "/containers/receiver"
	receiverArgs      = receiverContainer + "/args"
	receiverService   = "Service/stoker-system/stoker-receiver"
	receiverIngress   = "Ingress/stoker-system/stoker-receiver"
	receiverPolicy    = "NetworkPolicy/stoker-system/stoker-receiver"
	receiverIssued    = "Certificate/stoker-system/stoker-receiver"
	receiverVariable  = "spec/vars/receiver/value"
	receiverCheck     = "Pod/stoker-system/stoker-check-receiver"
)

var (
	on           = set("webhookReceiver.enabled", true)
	onIngress    = with(on, set("webhookReceiver.ingress", values{"enabled": true, "hosts": []any{"stoker.example.com"}}))
	onTLS        = with(on, set("webhookReceiver.tls", values{"enabled": true, "certManager": values{"enabled": true}}))
	onNetworking = with(on, set("webhookReceiver.networkPolicy.egress", true))
)

func backend(path string) values {
	return values{"path": path, "pathType": "Prefix", "backend": values{"service": values{"name": "stoker-receiver", "port": values{"name": "webhook"}}}}
}

func egress(to []any, ports ...int64) values {
	var list []any
	for _, p := range ports {
		list = append(list, values{"port": p, "protocol": "TCP"})
	}
	out := values{"ports": list}
	if to != nil {
		out["to"] = to
	}
	return out
}

// checkPeer admits the pod of helm test.
var checkPeer = values{"podSelector": values{"matchLabels": values{"app.kubernetes.io/name": "stoker", "app.kubernetes.io/component": "check"}}}

// receiverCases cover the values of the receiver.
var receiverCases = []valueCase{
	{"webhookReceiver.enabled", true, nil, []want{
		{receiverPolicy, "spec/policyTypes", []any{"Ingress"}, gone},
		{receiverPolicy, "spec/ingress", []any{ingress("webhook", nil), ingress("metrics", nil), ingress("health", nil)}, gone},
		{receiverPolicy, "spec/egress", gone, nil},
		{receiver, receiverContainer + "/image", "ghcr.io/stoker-io/receiver:0.1.0", gone},
		{receiverService, "spec/ports/webhook/port", int64(9444), gone},
		{receiverService, "spec/ports/metrics", nil, gone},
		{"Service/stoker-system/stoker-receiver-metrics", "spec/ports/metrics/port", int64(8083), gone},
		{"PodDisruptionBudget/stoker-system/stoker-receiver", "spec/maxUnavailable", int64(1), gone},
		{"ServiceAccount/stoker-system/stoker-receiver", "automountServiceAccountToken", false, gone},
		{"ClusterRole/stoker-receiver", "rules", []any{values{"apiGroups": []any{"stoker.io"}, "resources": []any{"gatewaysyncs", "configsyncs"}, "verbs": []any{"get", "list", "watch", "patch"}}, rule("stoker.io", "synctargets", "get")}, gone},
		{"ClusterRoleBinding/stoker-receiver", "subjects/0/namespace", namespace, gone},
		{"Role/line/stoker-receiver-secrets", "kind", gone, gone},
		{receiverCheck, "spec/containers/check/args", has{element: "--url=http://stoker-receiver.stoker-system.svc:9444"}, gone},
		{notesOf, "text", has{element: "http://stoker-receiver.stoker-system.svc:9444/webhook/NAMESPACE/GATEWAYSYNC"}, has{element: "stoker-receiver", not: true}},
	}},
	{"webhookReceiver.replicas", 3, on, []want{{receiver, "spec/replicas", int64(3), gone}}},
	{"webhookReceiver.image.repository", "registry.example.com/receiver", on, []want{
		{receiver, receiverContainer + "/image", "registry.example.com/receiver:0.1.0", gone},
		{receiverCheck, "spec/containers/check/image", "registry.example.com/receiver:0.1.0", gone},
	}},
	{"webhookReceiver.image.tag", "1.2.3", on, []want{{receiver, receiverContainer + "/image", "ghcr.io/stoker-io/receiver:1.2.3", gone}}},
	{"webhookReceiver.image.digest", sha, on, []want{{receiver, receiverContainer + "/image", "ghcr.io/stoker-io/receiver@" + sha, gone}}},
	{"webhookReceiver.image.pullPolicy", "Never", on, []want{
		{receiver, receiverContainer + "/imagePullPolicy", "Never", gone}, {receiverCheck, "spec/containers/check/imagePullPolicy", "Never", gone},
	}},
	{"webhookReceiver.service.type", "LoadBalancer", on, []want{
		{receiverService, "spec/type", "LoadBalancer", gone}, {"Service/stoker-system/stoker-receiver-metrics", "spec/type", "ClusterIP", gone},
	}},
	{"webhookReceiver.service.port", 80, with(onTLS, set("argocd.config.enabled", true), set("kargo.tasks.enabled", true), set("kargo.verification.enabled", true)), []want{
		{receiverService, "spec/ports/webhook/port", int64(80), gone},
		{receiverService, "spec/ports/webhook/targetPort", "webhook", gone},
		{receiverCheck, "spec/containers/check/args", has{element: "--url=https://stoker-receiver.stoker-system.svc:80"}, gone},
		{"ClusterPromotionTask/stoker-request", receiverVariable, "https://stoker-receiver.stoker-system.svc:80", gone},
		{"ClusterAnalysisTemplate/stoker-status", "spec/args/receiver/value", "https://stoker-receiver.stoker-system.svc:80", gone},
		{"ConfigMap/stoker-system/stoker-argocd", "data/argocd-notifications-cm.yaml", has{element: "url: https://stoker-receiver.stoker-system.svc:80\n"}, gone},
	}},
	{"webhookReceiver.service.annotations", values{"a": "b"}, on, []want{{receiverService, "metadata/annotations/a", "b", gone}}},
	{"webhookReceiver.ingress.enabled", true, onIngress, []want{
		{receiverIngress, "spec/rules/0/host", "stoker.example.com", gone},
		{receiverIngress, "spec/rules/0/http/paths", []any{backend("/webhook")}, gone},
		{receiverIngress, "spec/ingressClassName", nil, gone}, {receiverIngress, "spec/tls", nil, gone},
	}},
	{"webhookReceiver.ingress.className", "nginx", onIngress, []want{{receiverIngress, "spec/ingressClassName", "nginx", gone}}},
	{"webhookReceiver.ingress.annotations", values{"a": "b"}, onIngress, []want{{receiverIngress, "metadata/annotations/a", "b", gone}}},
	{"webhookReceiver.ingress.hosts", []any{"a.example.com", "*.b.example.com"}, onIngress, []want{
		{receiverIngress, "spec/rules/0/host", "a.example.com", gone}, {receiverIngress, "spec/rules/1/host", "*.b.example.com", gone},
		{receiverIngress, "spec/rules/1/http/paths/0/path", "/webhook", gone},
	}},
	{"webhookReceiver.ingress.paths", []any{"/webhook", "/status"}, onIngress, []want{
		{receiverIngress, "spec/rules/0/http/paths", []any{backend("/webhook"), backend("/status")}, gone},
	}},
	{"webhookReceiver.ingress.tls", []any{values{"secretName": "mine", "hosts": []any{"stoker.example.com"}}}, onIngress, []want{
		{receiverIngress, "spec/tls", []any{values{"secretName": "mine", "hosts": []any{"stoker.example.com"}}}, gone},
	}},
	{"webhookReceiver.tls.enabled", true, onTLS, []want{
		{receiver, receiverArgs, has{element: "--tls-dir=/etc/stoker/tls"}, gone},
		{receiver, receiverContainer + "/volumeMounts/certificate/mountPath", "/etc/stoker/tls", gone},
		{receiverCheck, "spec/containers/check/args", has{element: "--url=https://stoker-receiver.stoker-system.svc:9444"}, gone},
		{receiverCheck, "spec/containers/check/args", has{element: "--tls-ca-file=/etc/stoker/tls/ca.crt"}, gone},
		{notesOf, "text", has{element: "https://stoker-receiver.stoker-system.svc:9444"}, nil},
	}},
	{"webhookReceiver.tls.secretName", "mine", with(on, set("webhookReceiver.tls.enabled", true)), []want{
		{receiver, pod + "/volumes/certificate/secret/secretName", "mine", gone},
		{receiverCheck, "spec/volumes/authority/secret/secretName", "mine", gone},
		{receiverIssued, "kind", gone, gone},
	}},
	{"webhookReceiver.tls.certManager.enabled", true, with(on, set("webhookReceiver.tls.enabled", true)), []want{
		{receiver, pod + "/volumes/certificate/secret/secretName", "stoker-receiver-cert", gone},
		{receiverIssued, "spec/secretName", "stoker-receiver-cert", gone},
		{receiverIssued, "spec/dnsNames", []any{"stoker-receiver.stoker-system.svc", "stoker-receiver.stoker-system.svc.cluster.local"}, gone},
		{receiverIssued, "spec/issuerRef/name", "stoker-receiver", gone},
		{"Issuer/stoker-system/stoker-receiver", "spec/ca/secretName", "stoker-receiver-authority", gone},
		{"Certificate/stoker-system/stoker-receiver-authority", "spec/privateKey/rotationPolicy", "Never", gone},
	}},
	{"webhookReceiver.tls.certManager.issuerRef", values{"name": "plant", "kind": "ClusterIssuer"}, onTLS, []want{
		{receiverIssued, "spec/issuerRef", values{"name": "plant", "kind": "ClusterIssuer"}, gone},
		{"Issuer/stoker-system/stoker-receiver", "kind", gone, gone},
	}},
	{"webhookReceiver.tls.certManager.dnsNames", []any{"stoker.example.com"}, onTLS, []want{
		{receiverIssued, "spec/dnsNames", has{element: "stoker.example.com"}, gone},
	}},
	{"webhookReceiver.installSecret.name", "everybody", on, []want{
		{receiver, receiverArgs, has{element: "--install-secret-file=/etc/stoker/install-secret/token"}, gone},
		{receiver, pod + "/volumes/install-secret/secret", values{"secretName": "everybody", "items": []any{values{"key": "token", "path": "token"}}}, gone},
		{receiver, receiverContainer + "/volumeMounts/install-secret/mountPath", "/etc/stoker/install-secret", gone},
	}},
	{"webhookReceiver.installSecret.key", "secret", with(on, set("webhookReceiver.installSecret.name", "everybody")), []want{
		{receiver, receiverArgs, has{element: "--install-secret-file=/etc/stoker/install-secret/secret"}, gone},
		{receiver, pod + "/volumes/install-secret/secret/items", []any{values{"key": "secret", "path": "secret"}}, gone},
	}},
	{"webhookReceiver.secrets", []any{values{"namespace": "line", "name": "a"}, values{"namespace": "other", "name": "b"}, values{"namespace": "line", "name": "c"}}, on, []want{
		{"Role/line/stoker-receiver-secrets", "rules", []any{values{"apiGroups": []any{""}, "resources": []any{"secrets"}, "resourceNames": []any{"a", "c"}, "verbs": []any{"get"}}}, gone},
		{"Role/other/stoker-receiver-secrets", "rules/0/resourceNames", []any{"b"}, gone},
		{"RoleBinding/line/stoker-receiver-secrets", "subjects/0", values{"kind": "ServiceAccount", "name": "stoker-receiver", "namespace": namespace}, gone},
		{"RoleBinding/other/stoker-receiver-secrets", "roleRef/name", "stoker-receiver-secrets", gone},
	}},
	{"webhookReceiver.networkPolicy.enabled", false, on, []want{{receiverPolicy, "spec", gone, nil}}},
	{"webhookReceiver.networkPolicy.egress", true, on, []want{
		{receiverPolicy, "spec/policyTypes", []any{"Ingress", "Egress"}, gone},
		{receiverPolicy, "spec/ingress", []any{ingress("webhook", nil), ingress("metrics", nil), ingress("health", nil)}, gone},
		{receiverPolicy, "spec/egress", []any{egress(nil, 443, 6443)}, gone},
	}},
	{"webhookReceiver.networkPolicy.from", peers, onNetworking, []want{
		{receiverPolicy, "spec/ingress", []any{ingress("webhook", append([]any{checkPeer}, peers...)), ingress("metrics", nil), ingress("health", nil)}, gone},
	}},
	{"webhookReceiver.networkPolicy.metricsFrom", peers, onNetworking, []want{
		{receiverPolicy, "spec/ingress", []any{ingress("webhook", nil), ingress("metrics", peers), ingress("health", nil)}, gone},
	}},
	{"webhookReceiver.networkPolicy.apiServer.to", peers, onNetworking, []want{{receiverPolicy, "spec/egress", []any{egress(peers, 443, 6443)}, gone}}},
	{"webhookReceiver.networkPolicy.apiServer.ports", []any{8443}, onNetworking, []want{{receiverPolicy, "spec/egress", []any{egress(nil, 8443)}, gone}}},
	{"webhookReceiver.logLevel", "debug", on, []want{{receiver, receiverArgs, has{element: "--log-level=debug"}, gone}}},
	{"webhookReceiver.logFormat", "text", on, []want{{receiver, receiverArgs, has{element: "--log-format=text"}, gone}}},
	{"webhookReceiver.extraArgs", []any{"--log-level=warn"}, on, []want{{receiver, receiverArgs + "/2", "--log-level=warn", gone}}},
	{"webhookReceiver.resources.requests.cpu", "50m", on, []want{{receiver, receiverContainer + "/resources/requests/cpu", "50m", gone}}},
	{"webhookReceiver.resources.requests.memory", "100Mi", on, []want{{receiver, receiverContainer + "/resources/requests/memory", "100Mi", gone}}},
	{"webhookReceiver.resources.limits.memory", "1Gi", on, []want{{receiver, receiverContainer + "/resources/limits/memory", "1Gi", gone}, {receiverCheck, "spec/containers/0/resources/limits/memory", "1Gi", gone}}},
	{"webhookReceiver.nodeSelector", values{"kubernetes.io/os": "linux"}, on, []want{
		{receiver, pod + "/nodeSelector/kubernetes.io~os", "linux", gone}, {receiverCheck, "spec/nodeSelector/kubernetes.io~os", "linux", gone},
	}},
	{"webhookReceiver.tolerations", []any{values{"operator": "Exists"}}, on, []want{
		{receiver, pod + "/tolerations/0/operator", "Exists", gone}, {receiverCheck, "spec/tolerations/0/operator", "Exists", gone},
	}},
	{"webhookReceiver.affinity", values{"podAntiAffinity": values{}}, on, []want{{receiver, pod + "/affinity/podAntiAffinity", values{}, gone}}},
	{"webhookReceiver.topologySpreadConstraints", []any{values{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}}, on, []want{
		{receiver, pod + "/topologySpreadConstraints/0/topologyKey", "rack", gone}, {receiver, pod + "/topologySpreadConstraints/1", gone, gone},
	}},
	{"webhookReceiver.priorityClassName", "system-cluster-critical", on, []want{{receiver, pod + "/priorityClassName", "system-cluster-critical", gone}}},
	{"webhookReceiver.podAnnotations", values{"a": "b"}, on, []want{{receiver, "spec/template/metadata/annotations/a", "b", gone}}},
	{"webhookReceiver.podLabels", values{"a": "b"}, on, []want{
		{receiver, "spec/template/metadata/labels/a", "b", gone}, {receiver, "spec/selector/matchLabels/a", nil, gone},
	}},
	{"webhookReceiver.serviceAccount.annotations", values{"a": "b"}, on, []want{
		{"ServiceAccount/stoker-system/stoker-receiver", "metadata/annotations/a", "b", gone}, {"ServiceAccount/stoker-system/stoker-injector", "metadata/annotations/a", nil, nil},
	}},
}

const hooksInLine = "RoleBinding/line/stoker-hooks"

// askingCases cover the values for components that request a version: hooks, Argo CD and Kargo.
var askingCases = []valueCase{
	{"hooks.image.repository", "registry.example.com/hooks", set("hooks.namespaces", []any{"line"}), []want{
		{notesOf, "text", has{element: "image: registry.example.com/hooks:0.1.0\n"}, nil},
	}},
	{"hooks.image.tag", "1.2.3", with(set("hooks.namespaces", []any{"line"}), set("kargo.verification.enabled", true)), []want{
		{notesOf, "text", has{element: "image: ghcr.io/stoker-io/hooks:1.2.3\n"}, nil},
		{"ClusterAnalysisTemplate/stoker-wait", "spec/args/image/value", "ghcr.io/stoker-io/hooks:1.2.3", gone},
	}},
	{"hooks.image.digest", sha, set("hooks.namespaces", []any{"line"}), []want{{notesOf, "text", has{element: "image: ghcr.io/stoker-io/hooks@" + sha + "\n"}, nil}}},
	{"hooks.namespaces", []any{"line", "other"}, nil, []want{
		{"ServiceAccount/line/stoker-hooks", "automountServiceAccountToken", true, gone}, {"ServiceAccount/other/stoker-hooks", "kind", "ServiceAccount", gone},
		{hooksInLine, "roleRef", values{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stoker-setter"}, gone},
		{hooksInLine, "subjects", []any{values{"kind": "ServiceAccount", "name": "stoker-hooks", "namespace": "line"}}, gone},
		{notesOf, "text", has{element: "Jobs of the namespaces line, other "}, has{element: "stoker-hooks", not: true}},
	}},
	{"hooks.pods", true, set("hooks.namespaces", []any{"line"}), []want{
		{"Role/line/stoker-hooks-pods", "rules", []any{values{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"list"}}}, gone},
		{"RoleBinding/line/stoker-hooks-pods", "roleRef", values{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "stoker-hooks-pods"}, gone},
		{"RoleBinding/line/stoker-hooks-pods", "subjects", []any{values{"kind": "ServiceAccount", "name": "stoker-hooks", "namespace": "line"}}, gone},
	}},
	{"hooks.applications.namespace", "gitops", with(set("hooks.namespaces", []any{"line"}), set("hooks.applications.names", []any{"plant"})), []want{
		{"Role/gitops/stoker-hooks-applications", "kind", "Role", gone}, {"Role/argocd/stoker-hooks-applications", "kind", gone, gone},
	}},
	{"hooks.applications.names", []any{"plant", "site"}, set("hooks.namespaces", []any{"line", "other"}), []want{
		{"Role/argocd/stoker-hooks-applications", "rules", []any{values{"apiGroups": []any{"argoproj.io"}, "resources": []any{"applications"}, "resourceNames": []any{"plant", "site"}, "verbs": []any{"get"}}}, gone},
		{"RoleBinding/argocd/stoker-hooks-applications", "subjects", []any{
			values{"kind": "ServiceAccount", "name": "stoker-hooks", "namespace": "line"}, values{"kind": "ServiceAccount", "name": "stoker-hooks", "namespace": "other"},
		}, gone},
	}},
	{"argocd.config.enabled", true, nil, []want{
		{"ConfigMap/stoker-system/stoker-argocd", "data/argocd-cm.yaml", has{element: "\n  resource.customizations.health.stoker.io_GatewaySync: |\n"}, gone},
		{"ConfigMap/stoker-system/stoker-argocd", "data/argocd-notifications-cm.yaml", has{element: "url: http://stoker-receiver.stoker-system.svc:9444\n"}, gone},
		{notesOf, "text", has{element: "kubectl patch configmap argocd-cm -n argocd --type merge --patch-file argocd-cm.yaml"}, has{element: "argocd", not: true}},
	}},
	{"kargo.tasks.enabled", true, nil, []want{
		{"ClusterPromotionTask/stoker-request", receiverVariable, "http://stoker-receiver.stoker-system.svc:9444", gone},
		{"ClusterPromotionTask/stoker-argocd", "metadata/labels/app.kubernetes.io~managed-by", "Helm", gone},
		{"ClusterAnalysisTemplate/stoker-wait", "kind", gone, gone},
	}},
	{"kargo.verification.enabled", true, nil, []want{
		{"ClusterAnalysisTemplate/stoker-status", "spec/args/receiver/value", "http://stoker-receiver.stoker-system.svc:9444", gone},
		{"ClusterAnalysisTemplate/stoker-wait", "spec/args/image/value", "ghcr.io/stoker-io/hooks:0.1.0", gone},
		{"ClusterPromotionTask/stoker-request", "kind", gone, gone},
	}},
}

// placementCases cover the values that say where the pods of a workload run, and their annotations and labels.
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

// extraCases cover the values that the chart copies unchanged into the pods of each workload.
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

var readsSyncs = values{"apiGroups": []any{"stoker.io"}, "resources": []any{"gatewaysyncs", "configsyncs"}, "verbs": []any{"get", "list", "watch"}}

// notifierCases cover the values of stoker notify.
var notifierCases = []valueCase{
	{"notifier.enabled", true, nil, []want{
		{notifier, pod + "/containers/0/image", "ghcr.io/stoker-io/hooks:0.1.0", gone},
		{"ClusterRole/stoker-notifier", "rules", []any{readsSyncs}, gone},
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
	look(t, found, "Role/line/stoker-notifier-watch", "rules", []any{readsSyncs})
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

// admitted returns the rules of the Role in a served namespace: for finalizers of ConfigSyncs, and for the accounts to impersonate.
func admitted(accounts ...any) []any {
	return []any{rule("stoker.io", "configsyncs/finalizers", "update"),
		values{"apiGroups": []any{""}, "resources": []any{"serviceaccounts"}, "resourceNames": accounts, "verbs": []any{"impersonate"}},
	}
}

func TestConfigSyncNeedsNamespaces(t *testing.T) {
	t.Parallel()
	assert.ErrorContains(t, once(t, set("configSync.enabled", true)).err, "configSync.namespaces: name the namespaces to serve")
}
