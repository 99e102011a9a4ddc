package fleet

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	gosync "sync"
	"time"
)

// proxy stands in for 127.0.0.1 of every pod: it forwards each request to the gateway of its token.
type proxy struct {
	port   int32
	server *http.Server
	pool   *http.Transport
	served gosync.WaitGroup

	mu         gosync.RWMutex
	gateways   map[string]*url.URL // by token
	anyGateway *url.URL            // for requests without a token
}

// tokenHeader has a gateway's API token.
const tokenHeader = "X-Ignition-API-Token"

func newProxy(ctx context.Context) (*proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(errors.New("the proxy does not listen on TCP"), listener.Close())
	}
	f := &proxy{port: int32(addr.Port), gateways: map[string]*url.URL{}, pool: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 5 * time.Second}}
	silent := log.New(io.Discard, "", 0)
	proxy := &httputil.ReverseProxy{ErrorLog: silent, Transport: f.pool, Rewrite: func(r *httputil.ProxyRequest) {
		f.mu.RLock()
		defer f.mu.RUnlock()
		to, ok := f.gateways[r.In.Header.Get(tokenHeader)]
		if !ok {
			to = f.anyGateway
		}
		r.SetURL(to)
	}}
	f.server = &http.Server{Handler: proxy, ErrorLog: silent, ReadHeaderTimeout: 10 * time.Second}
	f.served.Go(func() { _ = f.server.Serve(listener) })
	return f, nil
}

func (f *proxy) add(token string, gateway *url.URL) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gateways[token], f.anyGateway = gateway, gateway
}

func (f *proxy) close() error {
	err := f.server.Close()
	f.served.Wait()
	f.pool.CloseIdleConnections()
	return err
}
