package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
)

// report returns a typical SyncReport after a sync.
func report(n int) map[string]any {
	return map[string]any{
		"format": int64(1), "gateway": "line-1", "profile": "default", "phase": "Synced", "reason": "Synced",
		"message": "46bc8a0 → 6a4f0c1: 1 updated", "ref": "main", "commit": fmt.Sprintf("%040x", n), "target": fmt.Sprintf("%040x", n),
		"revision": int64(n), "generation": int64(3), "term": int64(2), "started": "2026-01-01T08:00:00Z", "duration": "812ms",
		"files": map[string]any{"modified": int64(1)}, "projects": []any{"line", "library"}, "scan": "projects in 212ms",
		"drift": map[string]any{"files": int64(0)}, "agentVersion": "0.1.0",
	}
}

// BenchmarkKinds compares reports as a custom resource with reports as text in ConfigMaps. An iteration
// writes one of fifty reports and ends when a watcher of all has received it. docs/internals/design.md quotes the
// results.
func BenchmarkKinds(b *testing.B) {
	const reports = 50
	cluster := kubetest.Control(b)
	client, err := dynamic.NewForConfig(unlimited(cluster.RESTConfig()))
	require.NoError(b, err)
	for _, kind := range []struct {
		name     string
		resource schema.GroupVersionResource
		fill     func(u map[string]any, n int)
	}{
		{"SyncReport", v1alpha1.GroupVersion.WithResource("syncreports"), func(u map[string]any, n int) { u["status"] = report(n) }},
		{"ConfigMap", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, func(u map[string]any, n int) {
			text, err := json.Marshal(report(n))
			require.NoError(b, err)
			u["data"] = map[string]any{"report": string(text)}
		}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			namespace := cluster.Namespace(b)
			api := client.Resource(kind.resource).Namespace(namespace)
			objects := make([]*unstructured.Unstructured, reports)
			for i := range objects {
				u := &unstructured.Unstructured{Object: map[string]any{}}
				u.SetGroupVersionKind(kind.resource.GroupVersion().WithKind(kind.name))
				u.SetName(fmt.Sprintf("line-%d", i))
				u.SetLabels(map[string]string{"stoker.io/cr-name": "line"})
				kind.fill(u.Object, 0)
				objects[i], err = api.Create(b.Context(), u, metav1.CreateOptions{})
				require.NoError(b, err)
			}
			events := watch(b, cluster.RESTConfig(), kind.resource, namespace, objects[reports-1].GetResourceVersion())
			var bytes, n int
			for b.Loop() {
				n++
				u := objects[n%reports]
				kind.fill(u.Object, n)
				objects[n%reports], err = api.Update(b.Context(), u, metav1.UpdateOptions{})
				require.NoError(b, err)
				bytes += <-events
			}
			b.ReportMetric(float64(bytes)/float64(n), "watched-B/op")
		})
	}
}

func unlimited(c *rest.Config) *rest.Config {
	c.QPS = -1
	return c
}

// watch sends the size of each event after a resource version.
func watch(b *testing.B, c *rest.Config, r schema.GroupVersionResource, namespace, version string) <-chan int {
	b.Helper()
	client, err := rest.HTTPClientFor(c)
	require.NoError(b, err)
	root := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		root = "/api/" + r.Version
	}
	ctx, cancel := context.WithCancel(b.Context())
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Host, "/")+root+"/namespaces/"+namespace+"/"+r.Resource+
		"?watch=true&labelSelector=stoker.io%2Fcr-name%3Dline&resourceVersion="+version, http.NoBody)
	require.NoError(b, err)
	answer, err := client.Do(ask) //nolint:bodyclose // the clean-up below closes it
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, answer.StatusCode)
	events, done := make(chan int), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewReader(answer.Body); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			select {
			case events <- len(line):
			case <-ctx.Done():
				return
			}
		}
	}()
	b.Cleanup(func() { cancel(); _ = answer.Body.Close(); <-done })
	return events
}
