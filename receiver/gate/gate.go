// Package gate bounds what strangers can take: connections, and memory for what they send.
package gate

import (
	"net"
	"net/netip"
	"sync"
)

// Limits bound connections.
type Limits struct {
	// Total is how many are served at a time. More wait outside until one is free.
	Total int
	// Each is how many one address may have: one more is closed at once, so that one address cannot take all.
	Each int
	// Opened is told how many are open, Closed that one was closed at once. Both may be nil.
	Opened func(int)
	Closed func()
}

// Listener lets so many connections in.
func Listener(l net.Listener, limits Limits) net.Listener {
	if limits.Opened == nil {
		limits.Opened = func(int) {}
	}
	if limits.Closed == nil {
		limits.Closed = func() {}
	}
	return &listener{Listener: l, Limits: limits, places: make(chan struct{}, limits.Total), ended: make(chan struct{}), each: map[string]int{}}
}

type listener struct {
	net.Listener
	Limits
	places chan struct{}
	ended  chan struct{}
	end    sync.Once

	mu   sync.Mutex
	each map[string]int
}

// Accept waits for a place before it takes a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.places
			return nil, err
		}
		host := owner(c.RemoteAddr().String())
		if l.enters(host) {
			return &conn{Conn: c, leave: sync.OnceFunc(func() { l.leaves(host) })}, nil
		}
		_ = c.Close() // nobody was heard yet
		l.Closed()
	}
}

// owner is whose address it is: one of IPv4, or the 64 bits of IPv6 that one network has to itself.
func owner(address string) string {
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

func (l *listener) enters(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.each[host] >= l.Each {
		return false
	}
	l.each[host]++
	l.Opened(len(l.places))
	return true
}

func (l *listener) leaves(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.each[host]--; l.each[host] == 0 {
		delete(l.each, host)
	}
	<-l.places
	l.Opened(len(l.places))
}

// Close ends the waiting, too.
func (l *listener) Close() error {
	l.end.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

type conn struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
