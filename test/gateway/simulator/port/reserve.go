package port

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservation reserves a port while no server listens: it is a bound socket that never listens. Connections are refused, and
// the kernel does not assign the port to a process that asks for any free port. The zero value reserves nothing.
type reservation struct{ f *os.File }

// reservePort reserves the port of addr while a listener is open on it. The listener must have been created with
// controlShared. For an address that is not IPv4, reservePort reserves nothing.
func reservePort(addr string) (reservation, error) {
	parsed, err := netip.ParseAddrPort(addr)
	if err != nil || !parsed.Addr().Is4() {
		return reservation{}, nil //nolint:nilerr // the gateway works without a reserved port
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return reservation{}, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd)
	h := reservation{os.NewFile(uintptr(fd), "port of the simulated gateway")}
	err = errors.Join(sharePort(fd), os.NewSyscallError("bind",
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(parsed.Port()), Addr: parsed.Addr().As4()})))
	if err != nil {
		return reservation{}, errors.Join(err, h.f.Close())
	}
	return h, nil
}

func (h reservation) held() bool { return h.f != nil }

func (h reservation) release() {
	if h.f != nil {
		_ = h.f.Close() // nothing was ever written to it
	}
}

// sharePort lets a socket share its port with other sockets of the same user that allow it, too.
func sharePort(fd int) error {
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
}

// controlShared is the net.ListenConfig.Control of a listener whose port reservePort can reserve.
func controlShared(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = sharePort(int(fd)) })
	return errors.Join(err, set)
}
