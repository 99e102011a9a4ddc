package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

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
