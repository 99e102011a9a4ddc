package charts

import "slices"

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
