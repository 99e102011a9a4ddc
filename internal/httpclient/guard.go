package httpclient

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
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

// guard decides which addresses may be dialed. Private networks may: plants live there.
type guard struct{ loopback bool }

// checkHost checks the address of a host, or those to which its name resolves here. Without an answer, only the proxy knows them.
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
	compatible  = netip.MustParsePrefix("::/96")        // ::a.b.c.d
	translated  = netip.MustParsePrefix("64:ff9b::/96") // NAT64
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

// embedded returns the IPv4 address to which a gateway would forward an IPv6 address, if a names one.
func embedded(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.Addr{}
	}
	b := a.As16()
	switch {
	case compatible.Contains(a), translated.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}
