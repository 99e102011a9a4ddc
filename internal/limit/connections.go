// Package limit bounds the connections and the memory that untrusted clients can use.
package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Limits are the limits of a listener.
type Limits struct {
	// MaxTotal is the number of connections that are served at the same time. Further ones wait in the kernel.
	MaxTotal int
	// MaxEach is the number of connections of one address. Further ones are closed at once, so that one address cannot use
	// all connections.
	MaxEach int
	// Opened receives the number of open connections. Closed is called when a connection is closed at once. Both may be nil.
	Opened func(int)
	Closed func()
}

// Listener returns a listener that applies limits to l.
func Listener(l net.Listener, limits Limits) net.Listener {
	if limits.Opened == nil {
		limits.Opened = func(int) {}
	}
	if limits.Closed == nil {
		limits.Closed = func() {}
	}
	return &listener{Listener: l, Limits: limits, slots: make(chan struct{}, limits.MaxTotal), ended: make(chan struct{}), connections: map[string]int{}}
}

type listener struct {
	net.Listener
	Limits
	slots chan struct{}
	ended chan struct{}
	end   sync.Once

	mu          sync.Mutex
	open        int
	connections map[string]int
}

// Accept waits for a free slot before it accepts a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, err
		}
		host := addressKey(c.RemoteAddr().String())
		if l.acquire(host) {
			return &conn{Conn: c, leave: sync.OnceFunc(func() { l.release(host) })}, nil
		}
		_ = c.Close() // nothing was read from it
		l.Closed()
	}
}

// addressKey returns the key by which an address is limited: the address itself for IPv4, and its /64 prefix for IPv6, because one
// client usually has all of the prefix.
func addressKey(address string) string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	ip := a.Addr().Unmap().WithZone("")
	if prefix, err := ip.Prefix(64); err == nil && ip.Is6() {
		return prefix.String()
	}
	return ip.String()
}

func (l *listener) acquire(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connections[host] >= l.MaxEach {
		return false
	}
	l.connections[host]++
	l.open++
	l.Opened(l.open)
	return true
}

func (l *listener) release(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connections[host]--; l.connections[host] == 0 {
		delete(l.connections, host)
	}
	<-l.slots
	l.open--
	l.Opened(l.open)
}

// Close also ends a waiting Accept.
func (l *listener) Close() error {
	l.end.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

type conn struct {
	net.Conn
	leave func()
}

// Close also releases the slot.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
