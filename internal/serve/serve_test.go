package serve_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/test/leak"
)

func TestRunUntilCanceled(t *testing.T) {
	defer leak.None(t)
	s, err := serve.Listen(t.Context(), "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		}
	}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

	res, err := client.Get("http://" + s.Addr())
	require.NoError(t, err)
	res.Body.Close()
	assert.Equal(t, http.StatusOK, res.StatusCode)

	// R1: a body has a limit, whatever the handler does.
	res, err = client.Post("http://"+s.Addr(), "text/plain", strings.NewReader(strings.Repeat("x", 2<<20)))
	if err == nil { // the server may close the connection before the client has sent everything
		res.Body.Close()
		assert.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
	}

	cancel()
	select {
	case err := <-done:
		assert.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the server did not stop")
	}
}

// R1: one address cannot use all connections of a server, whatever the server is for.
func TestConnectionsOfOneAddress(t *testing.T) {
	for name, listen := range map[string]func(http.Handler) (*serve.Server, error){
		"plain": func(h http.Handler) (*serve.Server, error) { return serve.Listen(t.Context(), "127.0.0.1:0", h) },
		"TLS": func(h http.Handler) (*serve.Server, error) {
			return serve.ListenTLS(t.Context(), "127.0.0.1:0", h, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }}, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := listen(http.NotFoundHandler())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			defer func() {
				cancel()
				require.NoError(t, <-done)
			}()
			dial := func(from string) net.Conn {
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", s.Addr())
				require.NoError(t, err)
				return c
			}
			closed := func(c net.Conn) bool {
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				_, err := c.Read(make([]byte, 1))
				return !errors.Is(err, os.ErrDeadlineExceeded)
			}
			for range 128 { // the limit, which is not exported
				defer dial("127.0.0.2").Close()
			}
			more, other := dial("127.0.0.2"), dial("127.0.0.3")
			defer more.Close()
			defer other.Close()
			assert.True(t, closed(more), "a further connection must be closed at once")
			assert.False(t, closed(other), "another address must be served")
		})
	}
}

func TestListenErrorNamesAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close()) }()
	_, err = serve.Listen(t.Context(), l.Addr().String(), http.NotFoundHandler())
	assert.ErrorContains(t, err, l.Addr().String())
}

func TestMux(t *testing.T) {
	m := serve.NewMux(map[string]http.HandlerFunc{
		"POST /b/{name}": func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.PathValue("name")) },
		"GET /a":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
	})
	assert.Equal(t, []string{"GET /a", "POST /b/{name}"}, m.Patterns())
	for request, want := range map[string]int{"GET /a": http.StatusTeapot, "POST /a": http.StatusMethodNotAllowed, "POST /b/x": http.StatusOK, "GET /c": http.StatusNotFound} {
		t.Run(request, func(t *testing.T) {
			method, path, _ := strings.Cut(request, " ")
			w := httptest.NewRecorder()
			m.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			assert.Equal(t, want, w.Code)
			if want == http.StatusOK {
				assert.Equal(t, "x", w.Body.String())
			}
		})
	}
}
