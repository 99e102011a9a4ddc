package httpclient

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, "99999999999": time.Hour, "Fri, 02 Jan 2026 00:00:10 GMT": 10 * time.Second,
		"Thu, 01 Jan 2026 00:00:00 GMT": 0,
	} {
		t.Run(header, func(t *testing.T) {
			got, ok := RetryAfter(header, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), time.Hour)
			assert.True(t, ok, header)
			assert.Equal(t, want, got, header)
		})
	}
	for _, header := range []string{"", "soon", "-1"} {
		t.Run(header, func(t *testing.T) {
			_, ok := RetryAfter(header, time.Now(), time.Hour)
			assert.False(t, ok, header)
		})
	}
}

func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect to another host was followed") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name := strings.TrimPrefix(r.URL.Path, "/"); name {
		case "elsewhere":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "for ever":
			http.Redirect(w, r, "/for%20ever", http.StatusFound)
		case "here":
			http.Redirect(w, r, "/end", http.StatusFound)
		}
	}))
	defer server.Close()
	get := func(p Policy, path string) (int, error) {
		res, err := p.Client().Get(server.URL + path)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	for _, path := range []string{"/elsewhere", "/for%20ever", "/here"} {
		t.Run("none"+path, func(t *testing.T) {
			status, err := get(Policy{}, path)
			require.NoError(t, err)
			assert.Equal(t, http.StatusFound, status)
		})
		t.Run("same origin"+path, func(t *testing.T) {
			status, err := get(Policy{Refusal: func(host string) error { return fmt.Errorf("%s: %w", host, assert.AnError) }}, path)
			if path == "/here" {
				require.NoError(t, err)
				assert.Equal(t, http.StatusOK, status)
				return
			}
			require.ErrorIs(t, err, assert.AnError)
			assert.ErrorContains(t, err, strings.TrimPrefix(server.URL, "http://"))
		})
	}
}
