package server

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// moment runs a function before the next read of the GatewaySync plant, after the receiver has authorized the request.
type moment struct {
	http.RoundTripper
	next *sync.Map // "do": func()
}

func (m moment) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/gatewaysyncs/plant") {
		if do, ok := m.next.LoadAndDelete("do"); ok {
			do.(func())()
		}
	}
	return m.RoundTripper.RoundTrip(r)
}

// A team recreates a GatewaySync while the receiver carries out a request for the old one. The secret of the old one must change
// nothing in the new one and reveal nothing about it, not even its existence.
func TestR7SecretOfDeletedGatewaySync(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plant+"---"+others) // others keep the Secret in the cache
	var next sync.Map
	w.wrap = func(rt http.RoundTripper) http.RoundTripper { return moment{rt, &next} }
	w.start()
	syncs := w.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(w.ns)
	was, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	was.SetUID("")
	was.SetResourceVersion("")
	recreate := func() {
		_, err := syncs.Create(t.Context(), was, metav1.CreateOptions{})
		assert.NoError(t, err)
	}
	hint := push("refs/heads/main")
	other := push("refs/heads/dev")
	for name, send := range map[string]func() said{
		"ref":            func() said { return w.post("plant", `{"ref":"v1","id":"1"}`, bearer(ownSecret)) },
		"hint":           func() said { return w.post("plant", hint, gitHub(ownSecret, "d1", hint)) },
		"another branch": func() said { return w.post("plant", other, gitHub(ownSecret, "d2", other)) },
		"status":         func() said { return w.send(http.MethodGet, "/status/"+w.ns+"/plant", "", bearer(ownSecret)) },
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(replaced bool) string {
				w.sees("plant")
				next.Store("do", func() {
					assert.NoError(t, syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
					if replaced {
						recreate()
					}
				})
				got := send()
				got.Header.Del("Date")
				assert.Equal(t, http.StatusNotFound, got.Code, got.Raw)
				if !replaced {
					recreate()
				}
				for annotation := range w.gs("plant").Annotations {
					assert.NotContains(t, annotation, v1alpha1.GroupVersion.Group)
				}
				return got.Raw + headerText(got.Header)
			}
			assert.Equal(t, answer(true), answer(false), "the answer must not reveal the new GatewaySync")
		})
	}
	w.sees("plant")
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
}
