package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// U5: whatever answers a client of an API server, no second request leaves.
func TestNoRedirectIsFollowed(t *testing.T) {
	var elsewhere, paths []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Host+r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	var status int
	var location string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		w.Header().Set("Location", location)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")

	clients, err := ConnectTo(&rest.Config{Host: server.URL, BearerToken: "reader"}, "test")
	require.NoError(t, err)
	slow, err := clients.WithRate(5, 5, 0)
	require.NoError(t, err)
	accounts, err := clients.Accounts()
	require.NoError(t, err)
	account, err := accounts("plant", "author")
	require.NoError(t, err)
	meta, err := MetadataOf(clients)
	require.NoError(t, err)
	proxied := func(c Clients) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Core.CoreV1().Pods("plant").ProxyGet("http", "line-0", "8082", "state", nil).Stream(ctx)
			return err
		}
	}
	pod, api := "pod line-0 in namespace plant", "the API server at "+host
	for name, c := range map[string]struct {
		from string
		do   func(context.Context) error
	}{
		"pod":          {pod, proxied(clients)},
		"pod, slow":    {pod, proxied(slow)},
		"pod, account": {pod, proxied(account)},
		"get": {api, func(ctx context.Context) error {
			_, err := GatewaySyncs(clients.Dynamic, "plant").Get(ctx, "x")
			return err
		}},
		"metadata": {api, func(ctx context.Context) error {
			_, err := meta.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, metav1.ListOptions{})
			return err
		}},
		"watch": {api, func(ctx context.Context) error {
			_, err := clients.Core.CoreV1().Pods("plant").Watch(ctx, metav1.ListOptions{})
			return err
		}},
		"patch": {api, func(ctx context.Context) error {
			_, err := clients.Core.CoreV1().Pods("plant").Patch(ctx, "x", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return err
		}},
		"delete": {api, func(ctx context.Context) error {
			return clients.Core.CoreV1().Pods("plant").Delete(ctx, "x", metav1.DeleteOptions{})
		}},
		"discovery": {api, func(context.Context) error { _, err := clients.Core.Discovery().ServerVersion(); return err }},
	} {
		for _, to := range []string{other.URL + "/api", "//" + strings.TrimPrefix(other.URL, "http://") + "/api", "../../../../../../../api/v1/secrets", "/api/v1/secrets", ""} {
			for _, code := range []int{300, 301, 302, 303, 307, 308, 399} {
				t.Run(fmt.Sprintf("%s/%d %s", name, code, strings.ReplaceAll(to, "/", "_")), func(t *testing.T) {
					status, location, paths, elsewhere = code, to, nil, nil
					err := c.do(t.Context())
					redirect := &RedirectError{}
					require.ErrorAs(t, err, &redirect)
					assert.Equal(t, RedirectError{c.from, code}, *redirect)
					assert.Len(t, paths, 1)
					assert.False(t, slices.Contains(paths, "/api/v1/secrets"))
					assert.Empty(t, elsewhere)
					assert.False(t, Transient(err), "asking again does not help")
				})
			}
		}
	}
}
