// Package limit bounds the connections and the memory that untrusted clients can use.
package limit

import (
	"cmp"
	"math"
	"net"
	"net/netip"
	"sync"
)

// Limits are the limits of a listener.
type Limits struct {
	// MaxTotal is the number of connections that are served at the same time, 0 for any number. Further ones wait in the kernel.
	MaxTotal int
	// MaxEach is the number of connections of one address; it must be positive. Further ones are closed at once, so that one address
	// cannot use all connections.
	MaxEach int
	// Networks counts all addresses of an IPv6 /64 network as one: a client on the internet usually has all of them. In a cluster,
	// pods and nodes may share one.
	Networks bool
	// Opened receives the number of open connections after each change. Closed is called when MaxEach closes a connection. Both may be nil.
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
	slots := make(chan struct{}, cmp.Or(limits.MaxTotal, math.MaxInt32)) // its elements have no size, so it takes no memory
	return &listener{Listener: l, Limits: limits, slots: slots, ended: make(chan struct{}), connections: map[string]int{}}
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
		host := addressKey(c.RemoteAddr().String(), l.Networks)
		if l.acquire(host) {
			return &conn{Conn: c, leave: sync.OnceFunc(func() { l.release(host) })}, nil
		}
		_ = c.Close() // nothing was read from it
		l.Closed()
	}
}

// addressKey returns the key by which an address is limited: the address without its port, or with networks the /64 prefix of an IPv6
// address. It returns another text as it is.
func addressKey(address string, networks bool) string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	ip := a.Addr().Unmap().WithZone("")
	if prefix, err := ip.Prefix(64); err == nil && ip.Is6() && networks {
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
