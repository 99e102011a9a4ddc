package lookup_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/injector/lookup"
)

// server simulates an API server with one GatewaySync, line in namespace plant. In namespace mixed, another one cannot be decoded.
func server(t *testing.T, asked *atomic.Int64, hold <-chan struct{}) dynamic.Interface {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if hold != nil {
			select {
			case <-hold:
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
		const line = `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySync","metadata":{"name":"line","namespace":"plant","labels":{"fleet":"a"}},"spec":{"git":{"repo":"https://x/y","ref":"main"}}}`
		const damaged = `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySync","metadata":{"name":"damaged","namespace":"mixed"},"spec":{"git":7}}`
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/stoker.io/v1alpha1/namespaces/plant/gatewaysyncs/line":
			fmt.Fprint(w, line)
		case "/apis/stoker.io/v1alpha1/namespaces/plant/gatewaysyncs":
			fmt.Fprint(w, `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySyncList","metadata":{},"items":[`+line+`]}`)
		case "/apis/stoker.io/v1alpha1/namespaces/mixed/gatewaysyncs/damaged":
			fmt.Fprint(w, damaged)
		case "/apis/stoker.io/v1alpha1/namespaces/mixed/gatewaysyncs":
			fmt.Fprint(w, `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySyncList","metadata":{},"items":[`+line+`,`+damaged+`]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		}
	}))
	t.Cleanup(s.Close)
	client, err := dynamic.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
	require.NoError(t, err)
	return client
}

// find returns a Lookup with a timeout that suffices on a busy machine.
func find(t *testing.T, client dynamic.Interface, scope lookup.Scope) *lookup.Lookup {
	t.Helper()
	l, err := lookup.New(client, scope, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	assert.Equal(t, lookup.LookupTimeout, l.Timeout)
	l.Timeout = time.Minute
	return l
}

func TestCacheMissQueriesOnce(t *testing.T) {
	var asked atomic.Int64
	l := find(t, server(t, &asked, nil), lookup.Scope{})
	list, err := l.For(t.Context(), "plant", "line")
	require.NoError(t, err)
	require.Len(t, list.Readable, 1)
	assert.Equal(t, "main", list.Readable[0].Spec.Git.Ref)
	assert.EqualValues(t, 1, asked.Load())

	list, err = l.For(t.Context(), "plant", "")
	require.NoError(t, err)
	assert.Len(t, list.Readable, 1, "the GatewaySync of the namespace must be found")

	list, err = l.For(t.Context(), "plant", "other")
	require.NoError(t, err, "a missing GatewaySync must not be an error")
	assert.Empty(t, list)
}

// A GatewaySync that cannot be decoded must not make the other one the only one.
func TestUndecodableGatewaySyncCounts(t *testing.T) {
	var asked atomic.Int64
	l := find(t, server(t, &asked, nil), lookup.Scope{})
	for name, readable := range map[string]int{"": 1, "damaged": 0} {
		t.Run(name, func(t *testing.T) {
			all, err := l.For(t.Context(), "mixed", name)
			require.NoError(t, err)
			assert.Len(t, all.Readable, readable)
			require.Len(t, all.Unreadable, 1)
			assert.Equal(t, "damaged", all.Unreadable[0].Name)
		})
	}
}

func TestSelector(t *testing.T) {
	var asked atomic.Int64
	for selector, want := range map[string]int{"fleet=a": 1, "fleet=b": 0} {
		t.Run(selector, func(t *testing.T) {
			parsed, err := labels.Parse(selector)
			require.NoError(t, err)
			l := find(t, server(t, &asked, nil), lookup.Scope{Selector: parsed})
			list, err := l.For(t.Context(), "plant", "line")
			require.NoError(t, err)
			assert.Len(t, list.Readable, want)
			assert.Equal(t, selector, list.Selector)
		})
	}
}

// I7: simultaneous lookups share requests to the API server, and no lookup waits for long.
func TestConcurrentQueriesAreShared(t *testing.T) {
	var asked atomic.Int64
	hold := make(chan struct{})
	l := find(t, server(t, &asked, hold), lookup.Scope{})
	l.Timeout = 3 * time.Second // long enough that all lookups join the first request, even on a busy machine
	var group sync.WaitGroup
	for range 200 {
		group.Go(func() {
			_, err := l.For(t.Context(), "plant", "line")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	group.Wait()
	assert.LessOrEqual(t, asked.Load(), int64(3))
	close(hold)
	l.Timeout = time.Minute
	list, err := l.For(t.Context(), "plant", "line")
	require.NoError(t, err)
	assert.Len(t, list.Readable, 1, "a failed query must not be cached")
}

func TestExcludedNamespaces(t *testing.T) {
	s := lookup.Scope{Own: "stoker-system"}
	for namespace, excluded := range map[string]bool{"": true, "stoker-system": true, "kube-system": true, "kube-node-lease": true, "kube-public": true, "plant": false, "default": false} {
		t.Run(namespace, func(t *testing.T) {
			assert.Equal(t, excluded, s.Excluded(namespace) != "")
		})
	}
	s.Watch = []string{"plant", "stoker-system"}
	assert.Empty(t, s.Excluded("plant"))
	assert.NotEmpty(t, s.Excluded("default"))
	assert.NotEmpty(t, s.Excluded("stoker-system"), "the injector's namespace must stay excluded")
}
