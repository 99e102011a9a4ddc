package configsync_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
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
