package httpclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"

	"stoker.io/stoker/internal/failure"
)

// maxLookup bounds the lookup of a name that the proxy will resolve, too. If a proxy is needed, the local name server often cannot
// resolve the names of the internet.
const maxLookup = 2 * time.Second

// ProxyFromEnvironment returns a function for Client.Proxy that returns the proxy in HTTPS_PROXY, except for the
// hosts in NO_PROXY. It returns nil if HTTPS_PROXY is empty. Loopback addresses never use the proxy, so the guard in
// guard.go checks and refuses them.
func ProxyFromEnvironment() (func(*url.URL) (*url.URL, error), error) {
	config := httpproxy.FromEnvironment()
	if config.HTTPSProxy == "" {
		return nil, nil
	}
	config.HTTPProxy = "" // requests without TLS use no proxy: it could read and change them
	every := httpproxy.Config{HTTPSProxy: config.HTTPSProxy}
	p, err := every.ProxyFunc()(&url.URL{Scheme: "https", Host: "host.invalid"})
	if err != nil || p == nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" { // the text of err may have a password
		return nil, errors.New("HTTPS_PROXY must be the address of a proxy, such as http://proxy.example.com:3128")
	}
	return config.ProxyFunc(), nil
}

// useProxy sets the proxy of a policy if the request needs one.
func (c Client) useProxy(ctx context.Context, policy *Policy, target *url.URL, timeout time.Duration) error {
	proxy, err := c.proxied(ctx, target)
	if proxy != nil {
		policy.Proxy, policy.OnProxy = http.ProxyURL(proxy), refusedByProxy
		policy.Dial = (&net.Dialer{Timeout: min(maxConnect, timeout)}).DialContext // it dials the proxy, which the operator chose
	}
	return err
}

// proxied returns the proxy for a request, or nil. proxied cannot check the address that the proxy will dial. So it first checks the target
// itself: its address, or the addresses to which its name resolves here, if it does.
func (c Client) proxied(ctx context.Context, target *url.URL) (*url.URL, error) {
	if c.Proxy == nil {
		return nil, nil
	}
	proxy, err := c.Proxy(target)
	if err != nil || proxy == nil {
		return nil, err
	}
	if err := c.guard().checkHost(ctx, target.Hostname()); err != nil {
		return nil, err
	}
	return proxy, nil
}

// refusedByProxy returns an error that names the proxy if the proxy refuses the CONNECT request.
func refusedByProxy(_ context.Context, proxy *url.URL, _ *http.Request, res *http.Response) error {
	switch res.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("the proxy %s requires other credentials (HTTP 407)", failure.Quote(proxy.Host))
	case http.StatusForbidden:
		return fmt.Errorf("the proxy %s does not allow this host (HTTP 403): allow it there, or add it to NO_PROXY", failure.Quote(proxy.Host))
	}
	return fmt.Errorf("the proxy %s refused the connection (HTTP %d)", failure.Quote(proxy.Host), res.StatusCode)
}
