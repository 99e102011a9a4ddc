package simulator

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// holder keeps a port while nobody listens at it: a socket that is bound and never listens. Whoever connects is refused,
// and no other process is given the port in the meantime; one that asks for this very port gets it.
type holder struct{ f *os.File }

// hold keeps addr, which a listener that shares its port (see shared) has open. Only IPv4 addresses are kept; the
// simulator plays on 127.0.0.1.
func hold(addr string) (holder, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().Is4() {
		return holder{}, nil //nolint:nilerr // a name or an IPv6 address is played without
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return holder{}, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd)
	h := holder{os.NewFile(uintptr(fd), "port of the simulated gateway")}
	err = errors.Join(share(fd), os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})))
	if err != nil {
		return holder{}, errors.Join(err, h.f.Close())
	}
	return h, nil
}

func (h holder) held() bool { return h.f != nil }

func (h holder) release() {
	if h.f != nil {
		_ = h.f.Close() // nothing was ever written to it
	}
}

// share lets several sockets of one user have one port.
func share(fd int) error {
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
}

// shared is the Control of a listener whose port is held.
func shared(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) { err = share(int(fd)) }), err)
}
