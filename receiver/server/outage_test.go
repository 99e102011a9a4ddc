package server

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// wire is a transport to the API server that fails a given number of requests.
type wire struct {
	http.RoundTripper
	patches, secrets *atomic.Int64 // number of requests that will fail
}

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && w.patches.Add(-1) >= 0 || strings.Contains(r.URL.Path, "/secrets/") && w.secrets.Add(-1) >= 0 {
		return nil, errors.New("connection refused")
	}
	return w.RoundTripper.RoundTrip(r)
}

// A short outage of the API server only delays the answer. During a long outage the receiver answers 503 instead of 401, whether
// or not the GatewaySync exists.
func TestAPIServerOutageAnswers503(t *testing.T) {
	t.Parallel()
	var patches, secrets atomic.Int64
	w := newWorld(t, plant)
	w.wrap = func(rt http.RoundTripper) http.RoundTripper { return wire{rt, &patches, &secrets} }
	w.start()
	patches.Store(2)
	began := time.Now()
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	assert.Equal(t, "v1", w.desired("plant").Ref)
	assert.GreaterOrEqual(t, time.Since(began), 3*firstRetry)

	patches.Store(1 << 40)
	w.server.queue.Timeout = time.Second
	got = w.post("plant", `{"ref":"v2"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusServiceUnavailable, got.Code, "the receiver must not accept what it cannot write")
	assert.Equal(t, "failed", got.A.Result)
	assert.Equal(t, "5", got.Header.Get("Retry-After"))
	assert.Equal(t, "v1", w.desired("plant").Ref)
	assert.Equal(t, http.StatusUnauthorized, w.post("plant", "", bearer("wrong")).Code)

	secrets.Store(1 << 40)
	w.start() // the new replica has read no Secret yet
	raw := ""
	// sequence: each answer is compared with the one before
	for _, name := range []string{"plant", "nobody", "plant"} {
		got := w.post(name, "", bearer(ownSecret))
		assert.Equal(t, http.StatusServiceUnavailable, got.Code, name)
		assert.Equal(t, "5", got.Header.Get("Retry-After"))
		if raw != "" {
			assert.Equal(t, raw, got.Raw)
		}
		raw = got.Raw
	}
	require.NotContains(t, w.log.String(), "S3CR3T", "C7")
}

// Missing permissions in one namespace, or a namespace that does not exist yet, must not affect other namespaces. Requests for
// that namespace get 503, because the secret may be right.
func TestForbiddenNamespaceIsIsolated(t *testing.T) {
	kubetest.NotShort(t) // rights
	t.Parallel()
	w := newWorld(t, plant)
	w.more = []string{"elsewhere"}
	w.start()
	got := w.post("plant", `{"ref":"v1"}`, bearer(ownSecret))
	assert.Equal(t, http.StatusAccepted, got.Code, got.Raw)
	for path, code := range map[string]int{w.ns + "/nobody": http.StatusUnauthorized, "nowhere/plant": http.StatusUnauthorized, "elsewhere/plant": http.StatusServiceUnavailable} {
		t.Run(strings.TrimPrefix(path, w.ns+"/"), func(t *testing.T) {
			for method, route := range map[string]string{http.MethodPost: "/webhook/", http.MethodGet: "/status/"} {
				t.Run(method, func(t *testing.T) {
					got := w.send(method, route+path, "", bearer(ownSecret))
					assert.Equal(t, code, got.Code, got.Raw)
				})
			}
		})
	}
	assert.Contains(t, w.log.String(), "watch failed")
	assert.Contains(t, w.log.String(), "elsewhere")
}

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
