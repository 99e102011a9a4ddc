package server

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// site has ConfigSyncs with and without a repository of their own.
const site = `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: site}
spec:
  source: {git: {repoURL: "https://git.example.com/acme/plant.git", branch: main}}
  webhook: {secretRef: {name: webhook, key: secret}, followTags: ["v*"]}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: follower}
spec:
  source: {gatewaySync: {name: plant}}
  webhook: {secretRef: {name: webhook, key: secret}}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: closed}
spec:
  source: {git: {repoURL: "https://git.example.com/acme/plant.git"}}
  webhook: {enabled: false}
`

// A ConfigSync takes requests at a path of its own, with the rules of a GatewaySync.
func TestConfigSyncWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+site)
	post := func(name, body string, mods ...func(*http.Request)) said {
		return w.send(http.MethodPost, "/webhook/"+w.ns+"/configsync/"+name, body, mods...)
	}
	get := func(name string) *v1alpha1.ConfigSync {
		cs, err := kube.ConfigSyncs(w.admin.Dynamic, w.ns).Get(t.Context(), name)
		require.NoError(t, err)
		return cs
	}
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		name, body string
		mod        func(*http.Request)
		code       int
		result     string
		says       string
	}{
		{"site", push("refs/heads/main"), gitHub("wrong", "1", push("refs/heads/main")), http.StatusUnauthorized, "refused", ""},
		{"site", push("refs/heads/main"), gitHub(ownSecret, "1", push("refs/heads/main")), http.StatusAccepted, "accepted", "git is polled again"},
		{"site", push("refs/heads/main"), gitHub(installSecret, "2", push("refs/heads/main")), http.StatusAccepted, "accepted", ""},
		{"site", push("refs/heads/other"), gitHub(ownSecret, "3", push("refs/heads/other")), http.StatusAccepted, "ignored", "is not main"},
		{"site", `{"ref":"v0"}`, bearer(installSecret), http.StatusUnauthorized, "refused", "for pushes only"},
		{"site", `{"ref":"release"}`, bearer(ownSecret), http.StatusAccepted, "accepted", "the desired ref is release"},
		{"site", push("refs/tags/v2"), gitHub(ownSecret, "4", push("refs/tags/v2")), http.StatusAccepted, "accepted", "the desired ref is v2"},
		{"follower", push("refs/heads/main"), gitHub(ownSecret, "5", push("refs/heads/main")), http.StatusAccepted, "ignored", "request the ref of the GatewaySync"},
		{"follower", `{"ref":"v1"}`, bearer(ownSecret), http.StatusBadRequest, "invalid", "request the ref of the GatewaySync"},
		{"follower", `{}`, bearer(ownSecret), http.StatusAccepted, "accepted", ""},
		{"closed", `{}`, bearer(installSecret), http.StatusNotFound, "unknown", "no such ConfigSync"},
		{"plant", `{}`, bearer(ownSecret), http.StatusUnauthorized, "refused", ""},
	} {
		got := post(step.name, step.body, step.mod)
		assert.Equal(t, step.code, got.Code, "%s %s: %s", step.name, step.body, got.Raw)
		assert.Equal(t, step.result, got.A.Result, "%s %s: %s", step.name, step.body, got.Raw)
		assert.Contains(t, got.A.Message, step.says)
	}
	assert.Equal(t, "v2", get("site").Annotations[v1alpha1.AnnotationRequestedRef])
	assert.Equal(t, []string{"v2"}, request.Followed(get("site")))
	assert.NotContains(t, get("follower").Annotations, v1alpha1.AnnotationRequestedRef)
	assert.NotEmpty(t, get("follower").Annotations[v1alpha1.AnnotationRequestedAt])
	assert.Empty(t, w.gs("plant").Annotations, "the GatewaySync of the same name must not change")

	look := func() Status {
		return w.send(http.MethodGet, "/status/"+w.ns+"/configsync/site?ref=v2", "", bearer(ownSecret)).S
	}
	assert.Equal(t, request.Progressing, look().Phase, "no run has handled the request")
	cs := get("site")
	cs.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: cs.Generation, ObservedRequest: desiredref.Key(cs),
		Outcome: &v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "v2", Commit: other, Reason: v1alpha1.ReasonSynced}}
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.ns).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
	require.NoError(t, err)
	assert.Equal(t, request.Succeeded, look().Phase)
	assert.Equal(t, other, look().Commit)
}
