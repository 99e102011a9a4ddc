package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"

	"stoker.io/stoker/internal/failure"
)

// maxLookup bounds how long a name is looked up that a proxy resolves anyway. In a plant that needs a proxy, no answer is common.
const maxLookup = 2 * time.Second

// ProxyFromEnvironment returns a value of Client.Proxy: the proxy that HTTPS_PROXY names, except for the hosts of NO_PROXY. It returns nil if
// there is none. Loopback addresses have none either, so that the guard sees them.
func ProxyFromEnvironment() (func(*url.URL) (*url.URL, error), error) {
	config := httpproxy.FromEnvironment()
	if config.HTTPSProxy == "" {
		return nil, nil
	}
	config.HTTPProxy = "" // it could read and change what is not encrypted
	every := httpproxy.Config{HTTPSProxy: config.HTTPSProxy}
	p, err := every.ProxyFunc()(&url.URL{Scheme: "https", Host: "host.invalid"})
	if err != nil || p == nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" { // the text of err may have a password
		return nil, errors.New("HTTPS_PROXY must be the address of a proxy, such as http://proxy.example.com:3128")
	}
	return config.ProxyFunc(), nil
}

// proxied returns the proxy for a request, or nil. The address that the proxy dials cannot be checked, so what is known of the target is
// checked before: an address, and a name as far as it can be resolved here.
func (c Client) proxied(ctx context.Context, target *url.URL) (*url.URL, error) {
	if c.Proxy == nil {
		return nil, nil
	}
	proxy, err := c.Proxy(target)
	if err != nil || proxy == nil {
		return nil, err
	}
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(target.Hostname()); err == nil {
		addresses = append(addresses, a)
	} else {
		ctx, cancel := context.WithTimeout(ctx, maxLookup)
		defer cancel()
		addresses, _ = net.DefaultResolver.LookupNetIP(ctx, "ip", target.Hostname()) // without an answer, only the proxy knows
	}
	for _, a := range addresses {
		if kind := c.guard().forbidden(a); kind != "" {
			return nil, &ForbiddenError{a, kind}
		}
	}
	return proxy, nil
}

// refusedByProxy names the proxy that does not connect.
func refusedByProxy(_ context.Context, proxy *url.URL, _ *http.Request, res *http.Response) error {
	switch res.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("the proxy %s asks for other credentials (HTTP 407)", failure.Quote(proxy.Host))
	case http.StatusForbidden:
		return fmt.Errorf("the proxy %s does not allow this host (HTTP 403): allow it there, or name it in NO_PROXY", failure.Quote(proxy.Host))
	}
	return fmt.Errorf("the proxy %s answers HTTP %d", failure.Quote(proxy.Host), res.StatusCode)
}
