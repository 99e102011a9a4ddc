package credential

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/secret"
)

func secrets(list ...string) []secret.String {
	var all []secret.String
	for _, s := range list {
		all = append(all, secret.New(s))
	}
	return all
}

func revealed(list []secret.String) []string {
	var all []string
	for _, s := range list {
		all = append(all, s.Reveal())
	}
	return all
}

func TestSecretValues(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      nil,
		" \n\t\n":               nil,
		"one":                   {"one"},
		"one\n":                 {"one"},
		"one\r\n":               {"one"},
		" new \n\nold\n":        {"new", "old"},
		"a b":                   {"a b"},
		"1\n2\n3\n4":            {"1", "2", "3", "4"},
		strings.Repeat("x", 99): {strings.Repeat("x", 99)},
	} {
		t.Run(fmt.Sprintf("%.20q", text), func(t *testing.T) {
			got, ok := Values([]byte(text))
			assert.True(t, ok)
			assert.Equal(t, want, revealed(got))
		})
	}
	for _, text := range []string{"1\n2\n3\n4\n5", strings.Repeat("x", maxContent+1)} {
		got, ok := Values([]byte(text))
		assert.False(t, ok)
		assert.Empty(t, got)
	}
}

func sign(key, body string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(h.Sum(nil))
}

func TestProofNeedsSecret(t *testing.T) {
	c := NewChecker()
	const body = "body"
	for _, h := range []http.Header{
		{"X-Hub-Signature-256": {sign("key", body)}},
		{"X-Hub-Signature": {sign("key", body)}},
		{"X-Gitlab-Token": {"key"}},
		{"Authorization": {"Bearer key"}},
		{"Authorization": {"Basic OmtleQ=="}},
	} {
		t.Run(slices.Sorted(maps.Keys(h))[0], func(t *testing.T) {
			p, ok := Read(h, time.Now())
			require.True(t, ok)
			assert.True(t, c.Verify(p, []byte(body), secrets("key"), MaxValues))
			assert.True(t, c.Verify(p, []byte(body), secrets("old", "key"), MaxValues))
			assert.True(t, c.Verify(p, []byte(body), secrets("1", "2", "3", "4", "key"), MaxValues), "Verify must try all values")
			for name, none := range map[string][]secret.String{
				"no secret": nil, "empty secret": secrets(""), "different last letter": secrets("kex"), "shorter": secrets("ke"), "with a space": secrets("key "),
				"three empty secrets": make([]secret.String, 3),
			} {
				t.Run(name, func(t *testing.T) { assert.False(t, c.Verify(p, []byte(body), none, MaxValues)) })
			}
			assert.Equal(t, !p.Signed(), c.Verify(p, []byte("other"), secrets("key"), 0))
			assert.NotContains(t, fmt.Sprintf("%v %+v %#v", p, p, p), "key", "C7")
		})
	}
	// An empty key must never match.
	p, ok := Read(http.Header{"X-Hub-Signature-256": {sign("", body)}}, time.Now())
	require.True(t, ok)
	assert.False(t, c.Verify(p, []byte(body), secrets(""), MaxValues))
}

// R4: the signature of Standard Webhooks, as GitLab sends it, covers the id and the time, and is valid for five minutes.
func TestStandardWebhooks(t *testing.T) {
	// The key, the id, the time and the signature of the specification's own example.
	const key, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	example := func() http.Header {
		return http.Header{"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
			"Webhook-Signature": {"v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= v1a,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}}
	}
	c := NewChecker()
	p, ok := Read(example(), at)
	require.True(t, ok)
	assert.True(t, p.Signed())
	assert.True(t, c.Verify(p, []byte(body), secrets("other", key), MaxValues))
	assert.False(t, c.Verify(p, []byte(body+" "), secrets(key), MaxValues), "another body")
	assert.False(t, c.Verify(p, []byte(body), secrets("whsec_", "whsec_x", "", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), MaxValues), "another key")
	for name, change := range map[string]func(http.Header){
		"another id":        func(h http.Header) { h.Set("Webhook-Id", "msg_2") },
		"another time":      func(h http.Header) { h.Set("Webhook-Timestamp", "1614265331") },
		"no id":             func(h http.Header) { h.Del("Webhook-Id") },
		"two ids":           func(h http.Header) { h.Add("Webhook-Id", "msg_2") },
		"no time":           func(h http.Header) { h.Del("Webhook-Timestamp") },
		"no signature":      func(h http.Header) { h.Set("Webhook-Signature", "") },
		"other methods":     func(h http.Header) { h.Set("Webhook-Signature", "v1a,x v2,y") },
		"a short signature": func(h http.Header) { h.Set("Webhook-Signature", "v1,eA==") },
		"many signatures": func(h http.Header) {
			h.Set("Webhook-Signature", strings.Repeat("v2,x ", maxSignatures)+h.Get("Webhook-Signature"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := example()
			change(h)
			p, ok := Read(h, at)
			assert.False(t, ok && c.Verify(p, []byte(body), secrets(key), MaxValues))
		})
	}
	for age, want := range map[time.Duration]bool{tolerance: true, -tolerance: true, tolerance + time.Second: false, -tolerance - time.Second: false} {
		t.Run(age.String(), func(t *testing.T) {
			_, ok := Read(example(), at.Add(age))
			assert.Equal(t, want, ok)
		})
	}
	t.Run("with a token", func(t *testing.T) { // GitLab sends both; a signing key counts only by its signature
		h := example()
		h.Set("X-Gitlab-Token", "token")
		p, ok := Read(h, at)
		require.True(t, ok)
		assert.True(t, c.Verify(p, []byte(body), secrets("token"), MaxValues))
		h.Set("X-Gitlab-Token", key)
		h.Set("Webhook-Id", "msg_2")
		p, ok = Read(h, at)
		assert.False(t, ok && c.Verify(p, []byte(body), secrets(key), MaxValues))
	})
}

func TestInvalidProof(t *testing.T) {
	good := sign("key", "")
	for name, h := range map[string]http.Header{
		"nothing":                  {},
		"upper case":               {"X-Hub-Signature-256": {"sha256=" + strings.ToUpper(good[7:])}},
		"sha1":                     {"X-Hub-Signature": {"sha1=" + good[7:47]}},
		"sha256 digest as sha1":    {"X-Hub-Signature": {"sha1=" + good[7:]}},
		"not hex":                  {"X-Hub-Signature-256": {"sha256=" + strings.Repeat("g", 64)}},
		"twice":                    {"X-Hub-Signature-256": {good, good}},
		"an empty signature":       {"X-Hub-Signature-256": {""}, "Authorization": {"Bearer key"}},
		"two tokens":               {"X-Gitlab-Token": {"key", "key"}},
		"an empty token":           {"X-Gitlab-Token": {""}},
		"two authorizations":       {"Authorization": {"Bearer key", "Bearer key"}},
		"a blank bearer":           {"Authorization": {"Bearer  "}},
		"a broken basic":           {"Authorization": {"Basic ???"}},
		"basic without a password": {"Authorization": {"Basic a2V5Og=="}},
		"another scheme":           {"Authorization": {"Digest key"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := Read(h, time.Now())
			assert.False(t, ok)
		})
	}
}

// R5: tokens of identity providers are not accepted. The receiver compares a token as plain text and never parses it, so no
// issuer, audience or algorithm can be wrong.
func TestR5IdentityTokenIsNotSecret(t *testing.T) {
	c := NewChecker()
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for name, jwt := range map[string]struct{ algorithm, key string }{
		"unsigned":                {"none", ""},
		"signed with the secret":  {"HS256", "key"},
		"signed with another key": {"HS256", "other"},
		"RS256 by the secret":     {"RS256", "key"}, // a verifier that mixes up algorithms would take the secret for a public key
	} {
		t.Run(name, func(t *testing.T) {
			for claimed, claims := range map[string]string{
				"user":            `{"iss":"https://accounts.example.com","aud":"stoker-receiver","sub":"ci","email":"ci@example.com","exp":4102444800}`,
				"service account": `{"iss":"https://kubernetes.default.svc","aud":["stoker-receiver"],"sub":"system:serviceaccount:plant:default"}`,
				"nothing":         `{}`,
			} {
				token := part(`{"alg":"`+jwt.algorithm+`","typ":"JWT"}`) + "." + part(claims)
				signature := ""
				if jwt.key != "" {
					h := hmac.New(sha256.New, []byte(jwt.key))
					h.Write([]byte(token))
					signature = string(h.Sum(nil))
				}
				token += "." + part(signature)
				for header, value := range map[string]string{"Authorization": "Bearer " + token, "X-Gitlab-Token": token} {
					t.Run(claimed+" in "+header, func(t *testing.T) {
						p, ok := Read(http.Header{header: {value}}, time.Now())
						require.True(t, ok)
						assert.False(t, c.Verify(p, nil, secrets("key"), MaxValues))
						assert.False(t, c.Verify(p, nil, nil, MaxValues))
					})
				}
			}
		})
	}
}

func TestSecretFilesAreReread(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write := func(name, text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
	write(a, "S3CR3T-1\n")
	write(b, "S3CR3T-2\nS3CR3T-3\n")
	for name, text := range map[string]string{filepath.Join(dir, "none"): "", filepath.Join(dir, "blank"): " \n", filepath.Join(dir, "many"): "1\n2\n3\n4\n5"} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			if text != "" {
				write(name, text)
			}
			_, err := ReadFiles([]string{a, name}, time.Second, slog.New(slog.DiscardHandler))
			assert.ErrorContains(t, err, name)
		})
	}
	_, err := ReadFiles([]string{filepath.Join(dir, "blank")}, time.Second, slog.New(slog.DiscardHandler))
	assert.ErrorContains(t, err, "is empty: an empty secret would admit every caller")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f, err := ReadFiles([]string{a, b}, 10*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		later := func(want ...string) {
			t.Helper()
			time.Sleep(11 * time.Second)
			synctest.Wait()
			assert.Equal(t, want, revealed(f.Values()))
		}
		later("S3CR3T-1", "S3CR3T-2", "S3CR3T-3")
		write(a, "S3CR3T-4")
		later("S3CR3T-4", "S3CR3T-2", "S3CR3T-3")
		// A file that cannot be read keeps its values. An empty file loses them, which revokes the secret.
		require.NoError(t, os.Remove(a))
		later("S3CR3T-4", "S3CR3T-2", "S3CR3T-3")
		write(b, "")
		later("S3CR3T-4")
		later("S3CR3T-4")
		stop()
		require.NoError(t, <-done)
		assert.Equal(t, 1, strings.Count(log.String(), b+" is empty"), "once: %s", log.String())
		assert.NotContains(t, log.String(), "S3CR3T", "C7")
	})
}
