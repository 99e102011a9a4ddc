package ignition_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestTokenRefusals(t *testing.T) {
	g := start(t, simulator.Options{})
	issue := func(spec simulator.TokenSpec) string {
		token, err := g.Administrator.IssueToken(spec)
		require.NoError(t, err)
		return token
	}
	own := "Authenticated/ApiKeys/Stoker"
	for name, c := range map[string]struct {
		key  string
		says []string
	}{
		"unknown key":           {"nobody:S3CR3T", []string{"401", "rejects the API key", "config scan"}},
		"wrong key":             {"stoker:S3CR3T", []string{"401", "rejects the API key"}},
		"key without a name":    {"S3CR3T", []string{"401", "its name is missing", "<name>:<key>"}},
		"empty key":             {"", []string{"401", "requires an API key"}},
		"token without a level": {issue(simulator.TokenSpec{Name: "bare"}), []string{"403", "permission Read", "secureChannelRequired", "first boot"}},
		"token with a role":     {issue(simulator.TokenSpec{Name: "role", Levels: []string{"Authenticated/Roles/Administrator"}}), []string{"403"}},
		"secure token on http":  {issue(simulator.TokenSpec{Name: "tls", Levels: []string{own}, Secure: true}), []string{"403", "gateway.tls", "secureChannelRequired: false"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client(t, g, withKey(c.key)).Info(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayForbidden, err)
			for _, part := range c.says {
				assert.ErrorContains(t, err, part)
			}
			assert.NotContains(t, err.Error(), "S3CR3T")
			assert.NotContains(t, err.Error(), "<t", "the error has no markup of the page")
		})
	}
}

func TestReadOnlyTokenCannotScan(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: postProjects, Status: 403}))
	c := client(t, g)
	_, err := c.ScanStatus(t.Context(), ignition.Projects)
	require.NoError(t, err)
	_, err = c.Scan(t.Context(), ignition.Projects)
	requireReason(t, v1alpha1.ReasonGatewayForbidden, err)
	assert.ErrorContains(t, err, "permission Write")
	assert.Equal(t, 1, g.Requests.Count(postProjects), "a refused token is not retried")
}

func TestKeyRotation(t *testing.T) {
	g := start(t, simulator.Options{})
	var key atomic.Value
	key.Store("stoker:old")
	c := client(t, g, func(c *ignition.Config) {
		c.Key = func() (secret.String, error) { return secret.New(key.Load().(string)), nil }
	})
	_, err := c.Info(t.Context())
	requireReason(t, v1alpha1.ReasonGatewayForbidden, err)
	key.Store(g.Token() + "\n") // files of a Secret often end with a newline
	_, err = c.Info(t.Context())
	require.NoError(t, err)
}

func TestUnusableKeyIsNotSent(t *testing.T) {
	g := start(t, simulator.Options{})
	broken := errors.New("no such file")
	for name, key := range map[string]func() (secret.String, error){
		"unreadable": func() (secret.String, error) { return secret.String{}, broken },
		"two lines":  func() (secret.String, error) { return secret.New("stoker:S3CR3T\nInjected: yes"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, g, func(c *ignition.Config) { c.Key = key })
			_, err := c.Info(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayForbidden, err)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	assert.Empty(t, g.Requests.List())
	_, err := client(t, g, func(c *ignition.Config) { c.Key = nil }).Info(t.Context())
	assert.ErrorContains(t, err, "requires an API key")
}

func TestGatewayStates(t *testing.T) {
	for state, want := range map[simulator.State]v1alpha1.Reason{
		simulator.Down:          v1alpha1.ReasonGatewayUnreachable,
		simulator.Starting:      v1alpha1.ReasonWaitingForGateway,
		simulator.Faulted:       v1alpha1.ReasonWaitingForGateway,
		simulator.Commissioning: v1alpha1.ReasonWaitingForCommissioning,
	} {
		t.Run(string(state), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.SetState(state))
			_, err := client(t, g).Info(t.Context())
			requireReason(t, want, err)
			assert.Zero(t, g.Requests.Count("GET /welcome"), "the client follows no redirect")
			_, err = client(t, g).Scan(t.Context(), ignition.Projects)
			requireReason(t, want, err)
		})
	}
}

// F9 of docs/internals/threats.md: the client sends credentials only to the configured host.
func TestRedirectToAnotherHost(t *testing.T) {
	var asked atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer thief.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Status: status, Location: thief.URL + "/data/api/v1/gateway-info"}))
			_, err := client(t, g).Info(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			assert.ErrorContains(t, err, strings.TrimPrefix(thief.URL, "http://"))
			assert.ErrorContains(t, err, "does not follow")
		})
	}
	assert.Zero(t, asked.Load())
}

func TestRedirectToHTTPSError(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Status: 302, Location: "https://127.0.0.1:8043/data"}))
	_, err := client(t, g).Info(t.Context())
	assert.ErrorContains(t, err, "requires https")
	assert.ErrorContains(t, err, "127.0.0.1:8043")
}

func TestOlderGateway(t *testing.T) {
	g := start(t, simulator.Options{Version: "8.1.44"})
	_, err := client(t, g).ScanStatus(t.Context(), ignition.Projects)
	requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
	assert.ErrorContains(t, err, "Ignition 8.1.44")
	assert.ErrorContains(t, err, "8.3 or later")
	assert.ErrorIs(t, err, ignition.ErrNotFound)
}

func TestUnknownRoute(t *testing.T) {
	g := start(t, simulator.Options{})
	_, err := client(t, g).ScanStatus(t.Context(), "nothing")
	require.ErrorIs(t, err, ignition.ErrNotFound)
	assert.ErrorContains(t, err, "Ignition 8.3.8")
	status, ok := errors.AsType[*ignition.StatusError](err)
	require.True(t, ok)
	assert.Equal(t, "No route match for path: /v1/scan/nothing", status.Message)
}

func TestErrorBodies(t *testing.T) {
	g := start(t, simulator.Options{})
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct{ body, want string }{
		"page":                   {"<html><table><tr><th>MESSAGE:</th><td>Out of &quot;cheese&quot;</td></tr></table>" + long, `Out of "cheese"`},
		"page with markup":       {"<tr><th>MESSAGE:</th><td>a<script>b</script>\n c</td>", "a b c"},
		"page in latin-1":        {"<th>MESSAGE:</th><td>Ger\xe4t</td>", "Gerät"},
		"page of another server": {"<html><body>nginx" + long, ""},
		"truncated":              {"<th>MESSAGE:</th><td>never ends", ""},
		"json":                   {`{"message":"no","url":"/x","status":"500"}`, "no"},
		"json with number":       {`{"message":7,"status":500}`, "7"},
		"several messages":       {`{"messages":["a","b"],"fieldMessages":[]}`, "a; b"},
		"long":                   {`{"message":"` + long[:1000] + `"}`, long[:299] + "…"},
		"broken json":            {`{"message":`, ""},
		"empty":                  {" ", ""},
		"control characters":     {`{"message":"a\u0000\u001b[31mb\u202e"}`, "a[31mb"},
	} {
		t.Run(name, func(t *testing.T) {
			g.Faults.Clear()
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Status: 500, Body: c.body}))
			_, err := client(t, g).Info(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			status, ok := errors.AsType[*ignition.StatusError](err)
			require.True(t, ok)
			assert.Equal(t, c.want, status.Message)
			assert.Equal(t, 500, status.Status)
		})
	}
}

// C7: if a server echoes the token, the token must not reach a log, and no answer makes an error long.
func TestEchoedTokenIsRedacted(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	answer := func(status int, body string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, key string) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "KEY", key))
		}
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, key string)
		want   string
	}{
		"refusal":     {answer(500, `{"message":"bad token KEY"}`), "bad token REDACTED"},
		"value alone": {answer(500, `{"message":"bad token S3CR3T"}`), "bad token REDACTED"},
		"at the cut":  {answer(500, `{"message":"`+long[:295]+` KEY"}`), "9 RED…"},
		"redirect": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "http://S3CR3T/")
			w.WriteHeader(http.StatusFound)
		}, "redirects to REDACTED"},
		"malformed status line": {func(w http.ResponseWriter, key string) {
			conn, out, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = out.WriteString("HTTP/1.1 " + key + "\r\n\r\n")
				_ = errors.Join(out.Flush(), conn.Close())
			}
		}, "malformed HTTP status code"},
		"text for a list":      {answer(200, `{"items":"KEY"}`), "expected a list"},
		"long text for a list": {answer(200, `{"items":"`+long+`"}`), "expected a list"},
		"long number":          {answer(200, `{"metadata":{"total":`+long+`}}`), "cannot unmarshal number"},
	} {
		t.Run(name, func(t *testing.T) {
			echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.answer(w, r.Header.Get("X-Ignition-API-Token"))
			}))
			defer echo.Close()
			client, err := ignition.New(ignition.Config{URL: echo.URL, Key: func() (secret.String, error) { return secret.New("n:S3CR3T"), nil }})
			require.NoError(t, err)
			defer client.Close()
			_, err = client.Projects(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			text := err.Error()
			assert.Less(t, len(text), 1000)
			assert.Contains(t, text[:min(len(text), 1000)], c.want)
			assert.NotContains(t, text[:min(len(text), 1000)], "S3CR3T")
		})
	}
}

func TestAnswersOfOtherServers(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		says string
	}{
		"not JSON":      {"<html>", "is another server on this port?"},
		"too large":     {strings.Repeat(" ", 9<<20) + "{}", "more than 8 MiB"},
		"not an object": {"[1]", "is another server on this port?"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Status: 200, Body: c.body}))
			_, err := client(t, g).Info(t.Context())
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestSlowGatewayTimesOut(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Delay: simulator.Duration(time.Hour)}))
	c := client(t, g, func(c *ignition.Config) { c.Timeout = 30 * time.Millisecond })
	_, err := c.Info(t.Context())
	requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
	assert.ErrorContains(t, err, "no answer within 30ms")
}

func TestNewRefusesInvalidURLs(t *testing.T) {
	for _, raw := range []string{"", "localhost:8088", "ftp://h", "http://", "http://h:1/?q", "http://h/#f", "http://u:S3CR3T@h", "http://S3CR3T h/%zz"} {
		t.Run(raw, func(t *testing.T) {
			_, err := ignition.New(ignition.Config{URL: raw})
			require.Error(t, err, raw)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	c, err := ignition.New(ignition.Config{URL: "https://gw.example:8043/"})
	require.NoError(t, err)
	assert.Equal(t, "https://gw.example:8043", c.URL())
}
