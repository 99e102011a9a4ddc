package plant

import (
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

// front stands in for 127.0.0.1 of every pod: it forwards requests to the gateway of their token, and those without a
// token to the first gateway.
type front struct {
	port int32

	mu sync.Mutex
	to map[string]*simulator.Gateway // by token; the first also by ""
}

func newFront(t testing.TB) *front {
	t.Helper()
	f := &front{to: map[string]*simulator.Gateway{}}
	srv := httptest.NewServer(&httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		f.mu.Lock()
		defer f.mu.Unlock()
		g, known := f.to[r.In.Header.Get("X-Ignition-API-Token")]
		if !known {
			g = f.to[""]
		}
		if g == nil {
			return
		}
		if to, err := url.Parse(g.URL()); err == nil {
			r.SetURL(to)
		}
	}})
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	require.NoError(t, err)
	n, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(t, err)
	f.port = int32(n)
	return f
}

func (f *front) add(g *simulator.Gateway) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to[g.Token()] = g
	if f.to[""] == nil {
		f.to[""] = g
	}
}
