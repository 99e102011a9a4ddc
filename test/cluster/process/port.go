package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Ports are TCP ports of 127.0.0.1 that are kept for programs, also while the program does not run. A kept port is bound
// and not listened on, with SO_REUSEPORT: only a program that asks for the same, as etcd and the Kubernetes servers can,
// gets it, and no outgoing connection picks it.
type Ports struct{ held []int }

// Keep returns a free port and keeps it.
func (p *Ports) Keep() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	unix.CloseOnExec(fd)
	p.held = append(p.held, fd)
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

// Close gives the ports back.
func (p *Ports) Close() error {
	var errs []error
	for _, fd := range p.held {
		errs = append(errs, unix.Close(fd))
	}
	p.held = nil
	return errors.Join(errs...)
}
