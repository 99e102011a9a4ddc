package ui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/hooks/sites"
)

// U1 and U2 of docs/internals/threats.md: no request without the secret, with a foreign Host or with another method than GET and HEAD gets anything.
func TestGuards(t *testing.T) {
	t.Parallel()
	r := open(t, &rest.Config{Host: "http://127.0.0.1:1"}, "plant")
	host := strings.TrimPrefix(r.base, "http://")
	without := func(q *http.Request) { q.Header.Del("Cookie") }
	for name, c := range map[string]struct {
		method, path string
		change       func(*http.Request)
		want         int
	}{
		"cookie":                {"GET", "/", nil, 200},
		"HEAD":                  {"HEAD", "/", nil, 200},
		"localhost":             {"GET", "/", func(q *http.Request) { q.Host = strings.Replace(host, "127.0.0.1", "localhost", 1) }, 200},
		"no cookie":             {"GET", "/", without, 401},
		"no cookie for a style": {"GET", "/assets/style.css", without, 401},
		"no cookie for events":  {"GET", "/live", without, 401},
		"wrong cookie":          {"GET", "/", func(q *http.Request) { q.Header.Set("Cookie", r.cookie.Name+"=x") }, 401},
		"wrong token":           {"GET", "/?token=x", without, 401},
		"token, HEAD":           {"HEAD", "/?token=" + r.page.token, without, 401},
		"old token, cookie":     {"GET", "/?token=x", nil, 303},
		"foreign host":          {"GET", "/?token=" + r.page.token, func(q *http.Request) { q.Host = "attacker.example.com" }, 421},
		"foreign host, cookie":  {"GET", "/", func(q *http.Request) { q.Host = "127.0.0.1.attacker.example.com:80" }, 421},
		"POST":                  {"POST", "/", nil, 405},
		"DELETE":                {"DELETE", "/fleets/plant/line", nil, 405},
		"OPTIONS":               {"OPTIONS", "/", nil, 405},
		"long query":            {"GET", "/?q=" + strings.Repeat("x", 3000), nil, 414},
		"unknown":               {"GET", "/unheard", nil, 404},
		"unknown file":          {"GET", "/assets/unheard", nil, 404},
		"no listing":            {"GET", "/assets/", nil, 404},
		"escape":                {"GET", "/assets/..%2fpages%2fbase.html", nil, 404},
	} {
		t.Run(name, func(t *testing.T) {
			res := r.send(c.method, c.path, c.change)
			assert.Equal(t, c.want, res.StatusCode)
			policy := res.Header.Get("Content-Security-Policy")
			assert.Contains(t, policy, "default-src 'none'")
			assert.NotContains(t, policy, "unsafe")
			if res.StatusCode != http.StatusNotFound { // net/http removes it from errors about files
				assert.Equal(t, "no-store", res.Header.Get("Cache-Control"))
			}
			assert.Equal(t, "nosniff", res.Header.Get("X-Content-Type-Options"))
			assert.Equal(t, "no-referrer", res.Header.Get("Referrer-Policy"))
			assert.Empty(t, res.Header.Get("Access-Control-Allow-Origin"))
		})
	}
	assert.True(t, r.cookie.HttpOnly)
	assert.Equal(t, http.SameSiteLaxMode, r.cookie.SameSite)

	first := r.page.token
	assert.NotContains(t, r.cookie.String(), first, "the cookie must not contain the token")
	res := r.send("GET", "//evil.example.com/x?q=1&token="+first, without)
	assert.Equal(t, 303, res.StatusCode)
	assert.Len(t, res.cookies, 1)
	to, err := url.Parse(res.Header.Get("Location"))
	require.NoError(t, err)
	assert.Empty(t, to.Host, "the redirect must stay on this server: %s", to)
	assert.Equal(t, "q=1", to.RawQuery)

	t.Log("a token in the history of a browser opens nothing")
	res = r.send("GET", "/?token="+first, without)
	assert.Equal(t, 401, res.StatusCode)
	assert.Empty(t, res.cookies)
	assert.Equal(t, "/", r.send("GET", "/?token="+first, nil).Header.Get("Location"), "the browser that used it gets the page")

	t.Log("another browser opens the next address")
	opened := 0
	r.page.Opened = func() { opened++ }
	next, err := url.Parse(r.page.URL(host, "/reasons/Synced"))
	require.NoError(t, err)
	assert.NotEqual(t, first, next.Query().Get("token"))
	res = r.send("GET", next.RequestURI(), without)
	assert.Equal(t, 303, res.StatusCode)
	assert.Equal(t, "/reasons/Synced", res.Header.Get("Location"))
	assert.Equal(t, 401, r.send("GET", next.RequestURI(), without).StatusCode)
	assert.Equal(t, 1, opened)
}

// An open stream ends with the context of Run, also if no context of the kubeconfig leads to a cluster.
func TestStreamEndsWithServer(t *testing.T) {
	t.Parallel()
	page, err := New(Options{Sites: []sites.Site{{Context: "broken", Err: assert.AnError}}, Manual: manual})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	page.Run(ctx)
	server := httptest.NewServer(http.HandlerFunc(page.serveLive))
	t.Cleanup(server.Close)
	r := &reader{t: t, base: server.URL, cookie: &http.Cookie{Name: "none"}}
	events := r.events("/live")
	assert.Equal(t, "open", <-events)
	cancel()
	select {
	case _, more := <-events:
		assert.False(t, more)
	case <-time.After(10 * time.Second):
		server.CloseClientConnections()
		require.Fail(t, "the stream is still open")
	}
}
