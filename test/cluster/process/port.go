package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Ports reserves TCP ports of 127.0.0.1 for programs, even while they do not run. A reserved port is bound with
// SO_REUSEPORT and not listened on: only programs that also use SO_REUSEPORT, as etcd and the Kubernetes servers can,
// get it, and no outgoing connection picks it.
type Ports struct{ sockets []int }

// Reserve reserves and returns a free port.
func (p *Ports) Reserve() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	unix.CloseOnExec(fd)
	p.sockets = append(p.sockets, fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, fmt.Errorf("SO_REUSEPORT: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("a socket of 127.0.0.1 has the address %v", name)
	}
	return bound.Port, nil
}

// Close releases the ports.
func (p *Ports) Close() error {
	var errs []error
	for _, fd := range p.sockets {
		errs = append(errs, unix.Close(fd))
	}
	p.sockets = nil
	return errors.Join(errs...)
}
