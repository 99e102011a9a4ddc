package simulator

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// holder reserves a port while nothing listens: it is a bound socket that never listens. Connections are refused, and the
// kernel does not assign the port to a process that asks for any free port.
type holder struct{ f *os.File }

// hold reserves addr, which a listener that shares its port (see shared) has open. It supports only IPv4 addresses; the
// simulator uses 127.0.0.1.
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

// share lets several sockets of one user share a port.
func share(fd int) error {
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
}

// shared is the Control function of a listener whose port is held.
func shared(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) { err = share(int(fd)) }), err)
}
