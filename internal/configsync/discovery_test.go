package configsync_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
)

// stale marks the kinds of a group as the API server marks those of an extension that does not answer.
type stale struct {
	http.RoundTripper
	group string
}

func (s stale) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.RoundTripper.RoundTrip(req)
	if err != nil || req.URL.Path != "/apis" {
		return res, err
	}
	defer func() { _ = res.Body.Close() }()
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		return nil, err
	}
	for _, group := range list.Items {
		for i := range group.Versions {
			if group.Name == s.group {
				group.Versions[i].Freshness, group.Versions[i].Resources = apidiscoveryv2.DiscoveryFreshnessStale, nil
			}
		}
	}
	text, err := json.Marshal(list)
	changed := *res
	changed.Body, changed.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return &changed, err
}

// G3: objects whose kind the API server cannot list for a while are not forgotten, neither by a run that prunes nor by a deletion.
func TestGroupWithoutAnswer(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1")+"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {}}}")
	w.create("")
	w.must()
	w.commit("k8s/a.yaml", configMap("a", "2"))
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return stale{rt, "networking.k8s.io"} })
	policy := "NetworkPolicy.networking.k8s.io " + w.namespace + "/closed"

	_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
	assert.ErrorContains(t, err, policy+": the API server cannot say whether it serves")
	assert.Equal(t, map[string]string{"a": "2"}, w.data("a"), "the other objects are applied")
	assert.Len(t, w.get().Status.Inventory, 2)

	remove := func(engine *configsync.Engine) (configsync.Remaining, error) {
		clients := w.admin
		engine.StatusClients = &clients
		return engine.Remove(t.Context(), w.get())
	}
	left, err := remove(w.engine(config))
	assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
	assert.Equal(t, configsync.Remaining{Objects: []string{policy}}, left)
	assert.Len(t, w.get().Status.Inventory, 1)

	left, err = remove(w.engine(w.RESTConfig()))
	require.NoError(t, err)
	assert.Empty(t, left)
	_, err = w.core.NetworkingV1().NetworkPolicies(w.namespace).Get(t.Context(), "closed", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}
