package limit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBodyLimit(t *testing.T) {
	b := NewBodies(1)
	for name, c := range map[string]struct {
		length int
		want   error
	}{
		"empty": {0, nil}, "tiny": {100, nil}, "below the tiny limit": {tinyBody - 1, nil}, "at the tiny limit": {tinyBody, nil}, "small": {tinyBody + 1, nil}, "below the small limit": {smallBody - 1, nil}, "at the small limit": {smallBody, nil}, "above the small limit": {smallBody + 1, nil},
		"at the limit": {MaxBody, nil}, "cut": {MaxBody + 1, ErrCut}, "far above the limit": {4 * MaxBody, ErrCut},
	} {
		t.Run(name, func(t *testing.T) {
			for _, known := range []bool{true, false} {
				t.Run(fmt.Sprintf("known length %t", known), func(t *testing.T) {
					text := strings.Repeat("x", c.length)
					r := httptest.NewRequest(http.MethodPost, "/", iotest.HalfReader(strings.NewReader(text)))
					r.ContentLength = -1
					if known {
						r.ContentLength = int64(c.length)
					}
					body, release, err := b.Read(httptest.NewRecorder(), r)
					assert.ErrorIs(t, err, c.want)
					if c.want == nil {
						assert.Equal(t, text, string(body))
					}
					release()
					release() // a second call has no effect
					assert.Empty(t, b.slots)
					assert.LessOrEqual(t, len(b.buffers), 1, "the buffer must be reused")
				})
			}
		})
	}
	cut := errors.New("cut")
	for _, n := range []int{10, smallBody + 10} {
		r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(cut)))
		_, release, err := b.Read(httptest.NewRecorder(), r)
		assert.ErrorIs(t, err, cut)
		release()
	}
}

func TestRestOfBody(t *testing.T) {
	for name, c := range map[string]struct {
		length int
		want   error
	}{"one byte after the MaxBody+1 that Read returns": {MaxBody + 2, nil}, "largest": {MaxStream, nil}, "too large": {MaxStream + 1, ErrTooLarge}} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", io.LimitReader(zeros{}, int64(c.length)))
			r.ContentLength = -1
			b, w := NewBodies(1), httptest.NewRecorder()
			body, release, err := b.Read(w, r)
			defer release()
			require.ErrorIs(t, err, ErrCut)
			n := len(body)
			err = b.Rest(w, r, writerFunc(func(part []byte) { n += len(part) }))
			assert.ErrorIs(t, err, c.want)
			if c.want == nil {
				assert.Equal(t, c.length, n)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestLargeBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(1)
		large := func() *http.Request {
			return httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 2*smallBody)))
		}
		_, release, err := b.Read(httptest.NewRecorder(), large())
		require.NoError(t, err)
		began := time.Now()
		_, releaseOther, err := b.Read(httptest.NewRecorder(), large())
		assert.ErrorIs(t, err, ErrBusy)
		assert.Equal(t, slotTimeout, time.Since(began))
		releaseOther()
		_, releaseOther, err = b.Read(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("small")))
		require.NoError(t, err, "small bodies must not wait")
		releaseOther()
		release()
		_, release, err = b.Read(httptest.NewRecorder(), large())
		require.NoError(t, err)
		release()
	})
}

// net/http discards the rest of a body before it answers. A client that never sends it must not keep its connection.
func TestRefusedBodyIsDisconnected(t *testing.T) {
	t.Parallel()
	b := NewBodies(1)
	b.slots <- struct{}{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, release, err := b.Read(w, r)
		release()
		assert.ErrorIs(t, err, ErrBusy)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n%s", strings.Repeat("x", 2*smallBody))
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.Copy(io.Discard, c)
	assert.NoError(t, err)
}

func TestLargeBodiesPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(6)
		read := func(from string) (release func(), err error) {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 2*smallBody)))
			r.RemoteAddr = from
			_, release, err = b.Read(httptest.NewRecorder(), r)
			return release, err
		}
		var held []func()
		for _, from := range []string{"192.0.2.1:1", "192.0.2.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1"} {
			release, err := read(from)
			require.NoError(t, err, from)
			held = append(held, release)
		}
		for _, from := range []string{"192.0.2.1:3", "[2001:db8::3]:1"} {
			began := time.Now()
			_, err := read(from)
			assert.ErrorIs(t, err, ErrBusy, from)
			assert.Equal(t, slotTimeout, time.Since(began))
		}
		release, err := read("198.51.100.1:1")
		require.NoError(t, err, "each address must have its own limit")
		held[0]()
		again, err := read("192.0.2.1:4")
		require.NoError(t, err)
		for _, release := range append(held, release, again) {
			release()
		}
		assert.Empty(t, b.shares, "idle addresses must be dropped")
		assert.Empty(t, b.slots)
		assert.Len(t, b.buffers, 5, "the buffers must be reused")
	})
}

func TestBudget(t *testing.T) {
	b := NewBudget(6 * freeBytes)
	read := func(from string, length int) (release func(), err error) {
		text := strings.Repeat("x", length)
		body, release, err := b.ReadAll(iotest.HalfReader(strings.NewReader(text)), from)
		if err == nil {
			assert.Equal(t, text, string(body))
		}
		return release, err
	}
	var held []func()
	hold := func(from string, length int) {
		t.Helper()
		release, err := read(from, length)
		require.NoError(t, err)
		held = append(held, release)
	}
	busy := func(from string, length int, why string) {
		t.Helper()
		release, err := read(from, length)
		assert.ErrorIs(t, err, ErrBusy, why)
		release()
	}
	for range 100 {
		hold("192.0.2.1:1", 0) // takes nothing
	}
	for _, from := range []string{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1", "192.0.2.2:2"} {
		hold(from, freeBytes)
	}
	busy("192.0.2.1:3", freeBytes, "the address has used its third")
	busy("192.0.2.3:1", 3*freeBytes, "the body is larger than a third")
	hold("192.0.2.3:1", freeBytes)
	hold("192.0.2.3:1", freeBytes)
	busy("192.0.2.4:1", freeBytes, "all of the budget is used")
	hold("192.0.2.4:1", freeBytes-1) // takes nothing
	for _, release := range held {
		release()
		release() // a second call has no effect
	}
	assert.Zero(t, b.used)
	assert.Empty(t, b.by, "idle addresses must be dropped")
}

func TestConnectionLimits(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open, closed atomic.Int64
	l := Listener(inner, Limits{MaxTotal: 3, MaxEach: 2, Opened: func(n int) { open.Store(int64(n)) }, Closed: func() { closed.Add(1) }})
	accepted := make(chan net.Conn, 10)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	dial := func(from string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", inner.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	requireClosed := func(c net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		var timeout net.Error
		assert.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the connection must be closed at once")
	}
	dial("127.0.0.2")
	first := <-accepted
	dial("127.0.0.2")
	<-accepted
	requireClosed(dial("127.0.0.2"))
	require.Eventually(t, func() bool { return closed.Load() == 1 }, time.Minute, time.Millisecond, "the closed connection must be counted")
	dial("127.0.0.3")
	<-accepted
	assert.EqualValues(t, 3, open.Load())

	waits := dial("127.0.0.4") // the limit is reached, so this connection waits
	select {
	case <-accepted:
		t.Fatal("the limit must hold back the fourth connection")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, first.Close())
	_ = first.Close() // a second Close must not free another slot
	c := <-accepted
	assert.Equal(t, waits.LocalAddr().String(), c.RemoteAddr().String())
	assert.EqualValues(t, 3, open.Load())
	require.NoError(t, c.Close())
	assert.EqualValues(t, 2, open.Load(), "a waiting Accept must not count as a connection")
	require.NoError(t, l.Close())
	assert.ErrorIs(t, <-ended, net.ErrClosed)
}

// An IPv4 address has its own limits. An IPv6 address shares them with its /64 if networks count.
func TestAddressKey(t *testing.T) {
	assert.Equal(t, "2001:db8:1:2::9", addressKey("[2001:db8:1:2::9]:81", false))
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64",
		"[2001:db8:1:2::9]:81": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "@": "@", "": "",
	} {
		t.Run(address, func(t *testing.T) {
			assert.Equal(t, want, addressKey(address, true))
		})
	}
}
