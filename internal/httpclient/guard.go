package httpclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"

	"stoker.io/stoker/internal/failure"
)

// loopback allows loopback addresses if it is not empty. Only the linker sets it, in builds for tests: neither a flag nor the
// environment can.
var loopback string

// ForbiddenError reports an address that no request may reach.
type ForbiddenError struct {
	Address netip.Addr
	Kind    string
}

func (e *ForbiddenError) Error() string {
	return fmt.Sprintf("its address %s is %s, which Stoker does not contact for a user", e.Address, e.Kind)
}

// Guard checks the addresses that a shared program dials for a user, for clients of other protocols than Client. A nil Guard allows all.
type Guard struct{ guard }

// NewGuard returns a Guard.
func NewGuard() *Guard { return &Guard{guard{loopback: loopback != ""}} }

// Dialer returns a dialer that refuses forbidden addresses with a ForbiddenError.
func (g *Guard) Dialer(timeout time.Duration) *net.Dialer {
	d := &net.Dialer{Timeout: timeout}
	if g != nil {
		d.ControlContext = g.control
	}
	return d
}

// CheckProxied returns a ForbiddenError if a proxy must not be asked for a host. It checks the addresses that the name has here, if any.
func (g *Guard) CheckProxied(ctx context.Context, host string) error {
	if g == nil {
		return nil
	}
	return g.checkHost(ctx, host)
}

// guard decides which addresses may be dialed. It allows private networks, because plants use them.
type guard struct{ loopback bool }

// checkHost checks the address of a host, or those to which its name resolves here. It allows a name that only the proxy can resolve.
func (g guard) checkHost(ctx context.Context, host string) error {
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, a)
	} else {
		ctx, cancel := context.WithTimeout(ctx, maxLookup)
		defer cancel()
		addresses, _ = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	for _, a := range addresses {
		if kind := g.forbidden(a); kind != "" {
			return &ForbiddenError{a, kind}
		}
	}
	return nil
}

// control checks the address of each single connection before it is made, after the name was resolved, so that a name that resolves
// differently the second time gains nothing.
func (g guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%s %s cannot be checked", network, address)
	}
	if kind := g.forbidden(at.Addr()); kind != "" {
		return &ForbiddenError{at.Addr(), kind}
	}
	return nil
}

// metadata are the addresses at which clouds serve credentials, except those of 169.254.0.0/16.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS
	netip.MustParseAddr("fd20:ce::254"):    true, // Google
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // Linux connects 0.0.0.0 to loopback
	reserved    = netip.MustParsePrefix("240.0.0.0/4")
	compatible  = netip.MustParsePrefix("::/96")          // ::a.b.c.d
	translated  = netip.MustParsePrefix("64:ff9b::/96")   // NAT64
	localNAT64  = netip.MustParsePrefix("64:ff9b:1::/48") // NAT64 with a prefix of the site
	teredo      = netip.MustParsePrefix("2001::/32")
	sixToFour   = netip.MustParsePrefix("2002::/16")
)

// forbidden returns what kind of address a is if it must not be contacted, or "".
func (g guard) forbidden(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	switch {
	case a.IsLoopback():
		if g.loopback {
			return ""
		}
		return "a loopback address"
	case a.IsUnspecified(), thisNetwork.Contains(a):
		return "an unspecified address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast():
		return "a multicast address"
	case reserved.Contains(a):
		return "a reserved address"
	case metadata[a]:
		return "the metadata service of a cloud"
	}
	if inner := embedded(a); inner.IsValid() {
		return guard{}.forbidden(inner)
	}
	return ""
}

// embedded returns the IPv4 address to which a router would forward an IPv6 address, or the zero Addr if a contains none.
func embedded(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.Addr{}
	}
	b := a.As16()
	switch {
	case compatible.Contains(a), translated.Contains(a), localNAT64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:]))
	case teredo.Contains(a):
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}

// maxLookup bounds the lookup of a name that the proxy will resolve, too. If a proxy is needed, the local name server often cannot
// resolve the names of the internet.
const maxLookup = 2 * time.Second

// ProxyFromEnvironment returns a function for Client.Proxy that returns the proxy in HTTPS_PROXY for https addresses, except for the hosts in
// NO_PROXY. It returns nil if HTTPS_PROXY is empty, and an error if its value is not the address of a proxy. Loopback addresses never use the
// proxy, so the client dials them itself, and its guard refuses them.
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
