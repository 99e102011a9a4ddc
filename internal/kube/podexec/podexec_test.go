package podexec

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/kube/podexec/podexectest"
)

func TestMain(m *testing.M) {
	// After a cancellation, this goroutine ends with its next ping, within five seconds.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// execute runs "agent text-diff" against a server.
func execute(ctx context.Context, t *testing.T, serve http.HandlerFunc) (Result, error) {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	clients, err := kube.ConnectTo(&rest.Config{Host: server.URL, BearerToken: "reader"}, "test")
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "line-0", Namespace: "plant"}}
	return Run(ctx, clients, pod, "stoker-agent", []string{"/agent", "text-diff"}, 1000)
}

// overSPDY refuses websockets, as proxies and old servers do.
func overSPDY(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.Error(w, "no websockets", http.StatusBadRequest)
			return
		}
		serve(w, r)
	}
}

func TestRun(t *testing.T) {
	for protocol, wrap := range map[string]func(http.HandlerFunc) http.HandlerFunc{
		"websocket": func(serve http.HandlerFunc) http.HandlerFunc { return serve }, "SPDY": overSPDY,
	} {
		run := func(ctx context.Context, t *testing.T, program podexectest.Program) (Result, error) {
			return execute(ctx, t, wrap(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/api/v1/namespaces/plant/pods/line-0/exec", r.URL.Path)
				assert.Equal(t, "stoker-agent", r.URL.Query().Get("container"))
				assert.Equal(t, "Bearer reader", r.Header.Get("Authorization"))
				podexectest.Serve(w, r, program)
			}))
		}
		t.Run(protocol, func(t *testing.T) {
			t.Run("output", func(t *testing.T) {
				result, err := run(t.Context(), t, func(command []string, stdout, _ io.Writer) int {
					fmt.Fprint(stdout, strings.Join(command, " "))
					return 0
				})
				require.NoError(t, err)
				assert.Equal(t, Result{Stdout: "/agent text-diff"}, result)
			})
			t.Run("exit code", func(t *testing.T) {
				result, err := run(t.Context(), t, func(_ []string, stdout, stderr io.Writer) int {
					fmt.Fprint(stdout, "some")
					fmt.Fprint(stderr, strings.Repeat("why ", 10_000))
					return 2
				})
				require.NoError(t, err)
				assert.Equal(t, Result{"some", strings.Repeat("why ", 1024), 2}, result)
			})
			t.Run("output without an end", func(t *testing.T) {
				_, err := run(t.Context(), t, func(_ []string, stdout, _ io.Writer) int {
					for range 1 << 20 {
						if _, err := io.WriteString(stdout, "more and more"); err != nil {
							break
						}
					}
					return 0
				})
				assert.ErrorIs(t, err, bound.ErrTooLarge)
			})
			if protocol != "SPDY" { // client-go leaks goroutines of a websocket that is canceled while it opens; the case above cancels an open one
				return
			}
			t.Run("canceled", func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				defer close(ended)
				_, err := run(ctx, t, func([]string, io.Writer, io.Writer) int {
					cancel()
					<-ended
					return 0
				})
				assert.ErrorIs(t, err, context.Canceled)
			})
		})
	}
}

// U5: neither protocol follows a redirect, and an error says what is missing.
func TestRefused(t *testing.T) {
	forbidden := func(w http.ResponseWriter, r *http.Request) {
		verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create"}[r.Method]
		status := apierrors.NewForbidden(corev1.Resource("pods/exec"), "line-0", fmt.Errorf("ann cannot %s it", verb)).Status()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		assert.NoError(t, json.NewEncoder(w).Encode(status))
	}
	t.Run("no right", func(t *testing.T) {
		_, err := execute(t.Context(), t, forbidden)
		assert.True(t, apierrors.IsForbidden(err), err)
		assert.ErrorContains(t, err, "ann cannot create it")
	})
	t.Run("no right to get", func(t *testing.T) {
		result, err := execute(t.Context(), t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				forbidden(w, r)
				return
			}
			podexectest.Serve(w, r, func([]string, io.Writer, io.Writer) int { return 3 })
		})
		require.NoError(t, err)
		assert.Equal(t, 3, result.Code)
	})
	t.Run("redirect", func(t *testing.T) {
		thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) }))
		t.Cleanup(thief.Close)
		_, err := execute(t.Context(), t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) })
		assert.ErrorContains(t, err, "answers with a redirect (HTTP 302), which is not followed")
	})
	t.Run("an answer that is not one of Kubernetes", func(t *testing.T) {
		_, err := execute(t.Context(), t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>\x1b[2J") })
		assert.EqualError(t, err, "the API server answers with HTTP 200")
	})
}
