package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/serve"
)

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func get(t testing.TB, url string) string {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	require.NoError(t, err)
	return string(body)
}

// leaf returns the certificate of a server.
func leaf(t testing.TB, address string) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	return conn.ConnectionState().PeerCertificates[0]
}

// C9: every route and method of the three ports. Only a review has an effect, and the effect is limited to its answer. A new route
// needs a row here.
func TestRoutes(t *testing.T) {
	ready := false
	servers := map[string]*serve.Mux{
		"webhook": admission.New(admission.Config{}).Routes(),
		"health":  daemon.Health(func() bool { return ready }, "waiting"),
		"metrics": daemon.Metrics(prometheus.NewRegistry()),
	}
	want := map[string]int{
		"webhook POST /mutate": http.StatusUnsupportedMediaType, "health GET /healthz": http.StatusOK, "health GET /readyz": http.StatusServiceUnavailable,
		"metrics GET /metrics": http.StatusOK,
	}
	known := map[string]bool{"webhook /mutate": true, "health /healthz": true, "health /readyz": true, "metrics /metrics": true}
	var served []string
	for name, h := range servers {
		t.Run(name, func(t *testing.T) {
			for _, pattern := range h.Patterns() {
				served = append(served, name+" "+pattern)
			}
			for _, path := range []string{"/", "/mutate", "/mutate/", "/healthz", "/readyz", "/metrics", "/debug/pprof/", "/shutdown", "/state", "/startupz", "/../mutate"} {
				t.Run(path, func(t *testing.T) {
					for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} {
						t.Run(method, func(t *testing.T) {
							w := httptest.NewRecorder()
							r := httptest.NewRequest(method, path, nil)
							r.Header.Set("Authorization", "Bearer wrong") // no credential is right, because no route checks one
							h.ServeHTTP(w, r)
							key := fmt.Sprintf("%s %s %s", name, method, path)
							code, ok := want[key]
							if method == "HEAD" {
								code, ok = want[fmt.Sprintf("%s GET %s", name, path)]
							}
							switch {
							case ok:
								assert.Equal(t, code, w.Code, key)
							case known[name+" "+path]:
								assert.Equal(t, http.StatusMethodNotAllowed, w.Code, key)
							default:
								assert.Contains(t, []int{http.StatusNotFound, http.StatusMovedPermanently, http.StatusTemporaryRedirect}, w.Code, key)
							}
						})
					}
				})
			}
		})
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), served)
	ready = true
	w := httptest.NewRecorder()
	servers["health"].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	assert.Equal(t, http.StatusOK, w.Code)
}
