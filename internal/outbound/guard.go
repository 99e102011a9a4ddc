package outbound

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
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

// guard decides which addresses may be dialed. Private networks may: plants live there.
type guard struct{ loopback bool }

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
