package server

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
