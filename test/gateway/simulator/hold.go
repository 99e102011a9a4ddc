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

// hold reserves the port of addr while a listener is open on it. The listener must have been created with shared. hold
// supports only IPv4 addresses, such as the simulator's 127.0.0.1. For any other address it reserves nothing.
func hold(addr string) (holder, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().Is4() {
		return holder{}, nil //nolint:nilerr // the gateway works without a reserved port
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

// share lets a socket share its port with other sockets of the same user that allow it, too.
func share(fd int) error {
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
}

// shared is the net.ListenConfig.Control of a listener whose port hold can reserve.
func shared(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = share(int(fd)) })
	return errors.Join(err, set)
}
