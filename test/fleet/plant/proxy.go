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

// proxy stands in for 127.0.0.1 of every pod: it forwards requests to the gateway of their token, and those with an
// unknown or no token to the first gateway.
type proxy struct {
	port int32

	mu       sync.Mutex
	gateways map[string]*simulator.Gateway // by token; the first also by ""
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	p := &proxy{gateways: map[string]*simulator.Gateway{}}
	srv := httptest.NewServer(&httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		p.mu.Lock()
		defer p.mu.Unlock()
		g, known := p.gateways[r.In.Header.Get("X-Ignition-API-Token")]
		if !known {
			g = p.gateways[""]
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
	p.port = int32(n)
	return p
}

func (p *proxy) add(g *simulator.Gateway) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gateways[g.Token()] = g
	if p.gateways[""] == nil {
		p.gateways[""] = g
	}
}
