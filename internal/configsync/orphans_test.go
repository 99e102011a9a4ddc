package configsync_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// configMapServer is an API server that serves the metadata of ConfigMaps, and lists groups whose kinds it cannot list.
func configMapServer(t *testing.T, groups []metav1.APIGroup, objects ...metav1.PartialObjectMetadata) kube.Clients {
	t.Helper()
	kind := metav1.APIResource{Name: "configmaps", Namespaced: true, Kind: "ConfigMap", Verbs: metav1.Verbs{"list", "patch"}}
	answers := map[string]any{
		"/api":  metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: groups},
		"/api/v1": metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{kind},
		},
		"/api/v1/configmaps": metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, Items: objects,
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	clients, err := kube.ConnectTo(&rest.Config{Host: server.URL}, "test")
	require.NoError(t, err)
	return clients
}

// An interrupted run leaves entries without a UID. An object that no ConfigSync has applied does not match one: its mark may be a copy.
func TestOrphansOfInventoryEntries(t *testing.T) {
	applied := []metav1.ManagedFieldsEntry{{Manager: plan.FieldManager, Operation: metav1.ManagedFieldsOperationApply}}
	id := manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "a"}
	for name, c := range map[string]struct {
		entries []manifest.Entry
		applied []metav1.ManagedFieldsEntry
		orphan  bool
	}{
		"no entry":             {nil, applied, true},
		"the UID":              {[]manifest.Entry{{ID: id, UID: "u-1"}}, nil, false},
		"another UID":          {[]manifest.Entry{{ID: id, UID: "u-2"}}, applied, true},
		"no UID, applied":      {[]manifest.Entry{{ID: id}}, applied, false},
		"no UID, not applied":  {[]manifest.Entry{{ID: id}}, nil, true},
		"no UID, another name": {[]manifest.Entry{{ID: manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "b"}}}, applied, true},
	} {
		t.Run(name, func(t *testing.T) {
			cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "plant"}}
			for _, e := range c.entries { // setup: the inventory
				cs.Status.Inventory = append(cs.Status.Inventory, e.String())
			}
			clients := configMapServer(t, nil, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: id.Namespace, Name: id.Name, UID: types.UID("u-1"), ManagedFields: c.applied,
				Annotations: map[string]string{v1alpha1.AnnotationConfigSync: cs.Owner()},
			}})
			engine := &configsync.Engine{Connect: func() (kube.Clients, error) { return clients, nil }}
			orphans, unseen, err := engine.Orphans(t.Context(), cs)
			require.NoError(t, err)
			assert.Empty(t, unseen)
			if c.orphan {
				assert.Equal(t, []manifest.ID{id}, orphans)
			} else {
				assert.Empty(t, orphans)
			}
		})
	}
}

func TestOrphansOfUnlistedGroup(t *testing.T) {
	version := metav1.GroupVersionForDiscovery{GroupVersion: "extension.example.com/v1", Version: "v1"}
	clients := configMapServer(t, []metav1.APIGroup{{Name: "extension.example.com", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}})
	engine := &configsync.Engine{Connect: func() (kube.Clients, error) { return clients, nil }}
	_, unseen, err := engine.Orphans(t.Context(), &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "plant"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"extension.example.com/v1"}, unseen)
}

// sealed is a ConfigMap that cannot be changed.
func sealed(name, value, annotations string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, immutable: true, metadata: {name: %s, annotations: {%s}}, data: {a: %q}}\n---\n", name, annotations, value)
}

const recreate = "stoker.io/recreate: enabled"

func TestRecreate(t *testing.T) {
	t.Parallel()
	const pod = "template: {metadata: {labels: {a: b}}, spec: {restartPolicy: %s, containers: [{name: c, image: %s}]}}"
	job := "{apiVersion: batch/v1, kind: Job, metadata: {name: x, annotations: {" + recreate + "}}, spec: {suspend: true, " + fmt.Sprintf(pod, "Never", "%s") + "}}"
	set := "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, annotations: {" + recreate + "}}, spec: {serviceName: %s, replicas: 0, selector: {matchLabels: {a: b}}, " + fmt.Sprintf(pod, "Always", "c") + "}}"
	for name, c := range map[string]struct {
		manifest string
		resource schema.GroupVersionResource
	}{
		"Job":         {job, schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}},
		"StatefulSet": {set, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}},
		"ConfigMap":   {sealed("x", "PLACE", recreate), schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			text := func(value string) string { return strings.NewReplacer("%s", value, "PLACE", value).Replace(c.manifest) }
			objects := w.admin.Dynamic.Resource(c.resource).Namespace(w.namespace)
			w.commit("k8s/a.yaml", text("one")+"\n---\n"+configMap("other", "1"))
			w.create("apply: {wait: false}")
			w.must()
			before, err := objects.Get(t.Context(), "x", metav1.GetOptions{})
			require.NoError(t, err)
			w.commit("k8s/a.yaml", text("two")+"\n---\n"+configMap("other", "1"))
			r := w.must()
			assert.Contains(t, r.Plan.String(), "1 to recreate, 1 unchanged")
			after, err := objects.Get(t.Context(), "x", metav1.GetOptions{})
			require.NoError(t, err)
			assert.NotEqual(t, before.GetUID(), after.GetUID())
			inventory := w.get().Status.Inventory
			require.Len(t, inventory, 2)
			assert.Contains(t, strings.Join(inventory, "\n"), string(after.GetUID()))
			assert.Contains(t, w.must().Plan.String(), "2 unchanged")
			w.commit("k8s/a.yaml", configMap("other", "1"))
			w.must()
			_, err = objects.Get(t.Context(), "x", metav1.GetOptions{})
			assert.Error(t, err, "the recreated object must be pruned")
		})
	}
}

// G2: only what is ours by mark and UID is recreated, never what no commit brings back, and not without the right to delete it. Then
// nothing is changed.
func TestRecreateSpares(t *testing.T) {
	t.Parallel()
	claim := func(size string) string {
		return "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, annotations: {" + recreate + "}}, spec: {accessModes: [" + size + "], resources: {requests: {storage: 1Gi}}}}"
	}
	definition := func(scope string) string {
		return "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: recipes.NS.example.com, annotations: {" + recreate + "}}, spec: {group: NS.example.com, " +
			"names: {kind: Recipe, plural: recipes}, scope: " + scope + ", versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}"
	}
	replace := func(t *testing.T, w *world) {
		maps := w.core.CoreV1().ConfigMaps(w.namespace)
		old, err := maps.Get(t.Context(), "x", metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, maps.Delete(t.Context(), "x", metav1.DeleteOptions{}))
		old.UID, old.ResourceVersion, old.ManagedFields = "", "", nil
		_, err = maps.Create(t.Context(), old, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for name, c := range map[string]struct {
		first, second string
		before        func(*testing.T, *world)
		rules         []rbacv1.PolicyRule
		reason        v1alpha1.Reason
	}{
		"not enabled":                {sealed("x", "1", ""), sealed("x", "2", ""), nil, nil, v1alpha1.ReasonImmutableField},
		"another value":              {sealed("x", "1", ""), sealed("x", "2", "stoker.io/recreate: disabled"), nil, nil, v1alpha1.ReasonImmutableField},
		"claim":                      {claim("ReadWriteOnce"), claim("ReadWriteMany"), nil, nil, v1alpha1.ReasonImmutableField},
		"definition of a kind":       {definition("Namespaced"), definition("Cluster"), nil, nil, v1alpha1.ReasonApplyRefused},
		"replaced by another":        {sealed("x", "1", recreate), sealed("x", "2", recreate), replace, nil, v1alpha1.ReasonImmutableField},
		"invalid otherwise":          {sealed("x", "1", recreate), strings.Replace(sealed("x", "2", recreate), `"2"`, `"2", "a b": "c"`, 1), nil, nil, v1alpha1.ReasonApplyRefused},
		"no permission to delete it": {sealed("x", "1", recreate), sealed("x", "2", recreate), nil, []rbacv1.PolicyRule{rule("stoker.io", "configsyncs,configsyncs/status", "get", "update"), rule("", "configmaps", "get", "create", "patch")}, v1alpha1.ReasonApplyForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", c.first, "k8s/b.yaml", configMap("other", "1"))
			w.create("apply: {wait: false}")
			w.must()
			if c.before != nil {
				c.before(t, w)
			}
			config := w.RESTConfig()
			if c.rules != nil {
				config = w.as(c.rules...)
			}
			before := w.data("x")
			w.commit("k8s/a.yaml", c.second, "k8s/b.yaml", configMap("other", "2"))
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			require.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.Equal(t, before, w.data("x"))
			assert.Equal(t, map[string]string{"a": "1"}, w.data("other"), "no other object may change")
		})
	}
}

// G3: a run that ends at any request of a recreation leaves nothing untracked: the next run completes it, or prunes what git no longer has.
func TestRecreateKilledAtEachRequest(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create("")
			const most = 100
			// sequence: each iteration continues with what the one before left behind.
			for at := int64(1); ; at++ {
				require.Less(t, at, int64(most), "no run completed")
				object := fmt.Sprintf("x%d", at)
				w.commit("k8s/a.yaml", sealed(object, "1", recreate)+configMap("seed", "1"))
				w.must()
				w.commit("k8s/a.yaml", sealed(object, "2", recreate)+configMap("seed", "1"))
				count, last := &atomic.Int64{}, &atomic.Int64{}
				last.Store(at)
				config := w.RESTConfig()
				config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return killed{rt, last, count, after} })
				_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
				w.tracked()
				if err == nil {
					assert.Greater(t, at, int64(8), "the run must send enough requests to be interrupted")
					return
				}
				if at%2 == 0 {
					w.must()
					require.Equal(t, map[string]string{"a": "2"}, w.data(object), "the next run must complete a run that ended at request %d", at)
				}
				w.commit("k8s/a.yaml", configMap("seed", "1"))
				w.must()
				require.Nil(t, w.data(object), "after an end at request %d, a new commit must prune the object", at)
			}
		})
	}
}
