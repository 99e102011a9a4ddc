package apply_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// G3: an object of the inventory is gone only if the API server says so, not if it could not list the kinds of a group.
func TestGetEntry(t *testing.T) {
	version := metav1.GroupVersionForDiscovery{GroupVersion: "extension.example.com/v1", Version: "v1"}
	answers := map[string]any{
		"/api": metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
			Groups:   []metav1.APIGroup{{Name: "extension.example.com", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}},
		},
		"/api/v1": metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "configmaps", Namespaced: true, Kind: "ConfigMap", Verbs: metav1.Verbs{"get"}}},
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch answer, ok := answers[r.URL.Path]; {
		case ok:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		case r.URL.Path == "/apis/extension.example.com/v1":
			http.Error(w, "the extension does not answer", http.StatusServiceUnavailable)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	for name, c := range map[string]struct {
		id     manifest.ID
		reason v1alpha1.Reason
	}{
		"no such object":           {manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "a"}, ""},
		"no such kind":             {manifest.ID{Kind: "Widget", Namespace: "site", Name: "a"}, ""},
		"no such group":            {manifest.ID{Group: "example.com", Kind: "Widget", Namespace: "site", Name: "a"}, ""},
		"group that has no answer": {manifest.ID{Group: "extension.example.com", Kind: "Widget", Namespace: "site", Name: "a"}, v1alpha1.ReasonKindUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			client := apply.New(dynamic.NewForConfigOrDie(config), discovery.NewDiscoveryClientForConfigOrDie(config), &v1alpha1.ConfigSync{})
			live, err := client.GetEntry(t.Context(), manifest.Entry{ID: c.id, UID: "1"})
			require.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			require.Equal(t, c.reason == "", err == nil, "%v", err)
			assert.Nil(t, live)
		})
	}
}

// A token that has expired is a lack of rights, and not an API server that does not answer.
func TestCredentialsAreNotAccepted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client := apply.New(dynamic.NewForConfigOrDie(config), discovery.NewDiscoveryClientForConfigOrDie(config), &v1alpha1.ConfigSync{})
	_, err := client.GetEntry(t.Context(), manifest.Entry{ID: manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "a"}, UID: "1"})
	assert.True(t, failure.Is(err, v1alpha1.ReasonApplyForbidden), "%v", err)
	assert.ErrorContains(t, err, "does not accept the credentials")
}
