package charts

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
