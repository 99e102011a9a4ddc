package configsync_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// An interrupted run leaves entries without a UID. An object that no ConfigSync has applied does not match such an entry: its mark may be a
// copy.
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

// sealed is an immutable ConfigMap.
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

// G2: a run recreates an object only if the ConfigSync owns it, a commit can restore it, and the caller may delete it. Otherwise the run
// changes nothing.
func TestRecreateSpares(t *testing.T) {
	t.Parallel()
	claim := func(size string) string {
		return "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, annotations: {" + recreate + "}}, spec: {accessModes: [" + size + "], resources: {requests: {storage: 1Gi}}}}"
	}
	definition := func(scope string) string {
		return "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: recipes.NS.example.com, annotations: {" + recreate + "}}, spec: {group: NS.example.com, " +
			"names: {kind: Recipe, plural: recipes}, scope: " + scope + ", versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}"
	}
	set := func(service string) string {
		return strings.Replace(statefulSet(""), "name: line}, spec: {serviceName: s,", "name: x, annotations: {"+recreate+"}}, spec: {persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}, serviceName: "+service+",", 1)
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
		"claims of a set":            {set("one"), set("two"), nil, nil, v1alpha1.ReasonImmutableField},
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

// remove deletes the ConfigSync.
func (w *world) remove() {
	w.t.Helper()
	require.NoError(w.t, kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Delete(w.t.Context(), "plant", metav1.DeleteOptions{}))
}

// gone waits until the ConfigSync is gone.
func (w *world) gone() {
	w.t.Helper()
	syncs := kube.ConfigSyncs(w.admin.Dynamic, w.namespace)
	require.Eventually(w.t, func() bool {
		_, err := syncs.Get(w.t.Context(), "plant")
		return apierrors.IsNotFound(err)
	}, soon, 100*time.Millisecond)
}

// G6: the deletion of a ConfigSync deletes its objects only if deletionPolicy is Delete, and never other objects.
func TestProgramDeletes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec, patch string
		stays       bool
	}{
		"Orphan":                        {"", "", true},
		"Delete":                        {"{deletionPolicy: Delete, prune: none}", "", false},
		"changed from Orphan to Delete": {"", `{"spec":{"deletionPolicy":"Delete"}}`, false},
		"changed from Delete to Orphan": {"{deletionPolicy: Delete}", `{"spec":{"deletionPolicy":"Orphan"}}`, true},
		"Delete while paused":           {"{deletionPolicy: Delete}", `{"spec":{"paused":true}}`, false},
		"Delete with a missing source":  {"{deletionPolicy: Delete}", `{"spec":{"source":{"git":{"branch":"gone"}}}}`, false},
		"Delete with an invalid spec":   {"{deletionPolicy: Delete}", `{"spec":{"source":{"git":{"excludes":["a["]}}}}`, false},
		"invalid from the start":        {"{deletionPolicy: Delete, source: {git: {excludes: ['a[']}}}", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			system := w.installed()
			w.account(w.namespace, "stoker-config", configMaps, rule("", "persistentvolumeclaims", "get", "create", "patch", "delete"))
			var list strings.Builder
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
				list.WriteString(configMap(name, "1"))
			}
			w.commit("k8s/a.yaml", list.String()+`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, annotations: {stoker.io/wait: disabled}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: {stoker.io/prune: disabled}}}
`)
			w.create(c.spec)
			w.program(system, nil)
			if strings.HasPrefix(name, "invalid") {
				w.reaches(metav1.ConditionFalse, v1alpha1.ReasonManifestInvalid)
				w.remove()
				w.gone()
				return
			}
			w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
			if c.patch != "" {
				before := w.get().Status.ObservedGeneration
				w.patch(c.patch)
				require.Eventually(t, func() bool { return w.get().Status.ObservedGeneration > before }, soon, 100*time.Millisecond)
			}
			w.edit("g", `{"metadata":{"annotations":{"stoker.io/configsync":null}}}`) // the inventory lists it, so it is still ours
			w.remove()
			w.gone()
			if c.stays {
				assert.Len(t, w.ours(), 7)
				assert.NotContains(t, w.reasons(), "Released")
				return
			}
			assert.Equal(t, []string{"kept"}, w.ours())
			assert.Nil(t, w.data("g"))
			_, err := w.core.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), "data", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Contains(t, w.reasons(), "Normal Released: its objects are deleted, except those that must not be pruned: PersistentVolumeClaim "+w.namespace+"/data, ConfigMap "+w.namespace+"/kept\n")
		})
	}
}

// G6: a namespace that is deleted with everything in it goes away, although the rights of the account go first.
func TestProgramDoesNotHoldNamespaces(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("{deletionPolicy: Delete}")
	w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	require.Equal(t, []string{v1alpha1.FinalizerConfigSync}, w.get().Finalizers)
	require.NoError(t, w.core.CoreV1().Namespaces().Delete(t.Context(), w.namespace, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := w.core.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, soon, 200*time.Millisecond)
}

// later is an API server whose clock is hours ahead once over is set.
type later struct {
	http.RoundTripper
	over *atomic.Bool
}

func (l later) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(req)
	if err == nil && l.over.Load() {
		res.Header.Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
	}
	return res, err
}

// G6: if the account loses its rights together with the ConfigSync, as after an uninstall, the finalizer ends at the deadline, and a
// Warning lists what stays.
func TestProgramReleasesWithoutRights(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *world, system string){
		"account": func(w *world, _ string) {
			require.NoError(w.t, w.core.RbacV1().RoleBindings(w.namespace).Delete(w.t.Context(), "stoker-config", metav1.DeleteOptions{}))
			require.NoError(w.t, w.core.CoreV1().ServiceAccounts(w.namespace).Delete(w.t.Context(), "stoker-config", metav1.DeleteOptions{}))
			w.WaitDenied(w.t, w.namespace, "stoker-config", authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "delete", Resource: "configmaps"})
		},
		"impersonation": func(w *world, system string) {
			role, err := w.core.RbacV1().Roles(w.namespace).Get(w.t.Context(), "stoker-configsync-accounts", metav1.GetOptions{})
			require.NoError(w.t, err)
			role.Rules = nil
			_, err = w.core.RbacV1().Roles(w.namespace).Update(w.t.Context(), role, metav1.UpdateOptions{})
			require.NoError(w.t, err)
			w.WaitDenied(w.t, system, "stoker-configsync", authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "impersonate", Resource: "serviceaccounts", Name: "stoker-config"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			system := w.installed()
			w.account(w.namespace, "stoker-config", configMaps)
			w.commit("k8s/a.yaml", configMap("a", "1"))
			w.create("{deletionPolicy: Delete, progressDeadline: 1h}")
			over := &atomic.Bool{}
			w.program(system, func(rt http.RoundTripper) http.RoundTripper { return later{rt, over} })
			w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
			lose(w, system)
			w.remove()
			require.Eventually(t, func() bool {
				c := w.condition(v1alpha1.ConditionReady)
				return c != nil && c.Status == metav1.ConditionFalse
			}, soon, 100*time.Millisecond, "the first attempt must fail")
			assert.NotEmpty(t, w.get().Finalizers, "the finalizer must wait for the rights until the deadline")
			over.Store(true)
			w.annotate(v1alpha1.AnnotationForceSync, "now")
			w.gone()
			assert.NotNil(t, w.data("a"))
			assert.Regexp(t, "Warning Released: they could not be deleted until 1h0m0s after the deletion of the ConfigSync: .+; not deleted: ConfigMap "+w.namespace+"/a", w.reasons())
		})
	}
}
