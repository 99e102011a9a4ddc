// Package credential checks whether the sender of a request knows a secret. It compares in constant time and does the same work
// whether a secret exists or not.
package credential

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"

	"stoker.io/stoker/internal/secret"
)

// MaxValues is the number of values that one secret may have: the old and the new one during a rotation, and some more.
const MaxValues = 4

// Values parses a secret: one value per line, without surrounding space. If there are more than MaxValues, ok is false, so that
// a file of another kind is not taken for a list of secrets.
func Values(content []byte) (values []secret.String, ok bool) {
	if len(content) > maxContent {
		return nil, false
	}
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); line != "" {
			values = append(values, secret.New(line))
		}
	}
	if len(values) > MaxValues {
		return nil, false
	}
	return values, true
}

const maxContent = 64 << 10

// Proof is the evidence in a request that its sender knows a secret.
type Proof struct {
	signed bool
	mac    []byte // of the body, if signed
	token  secret.String
}

// Signed reports whether the proof covers the body. It is meaningless if Read returned false.
func (p Proof) Signed() bool { return p.signed }

// signatures are the headers with signatures. The first one that is present counts, because GitHub and Gitea also send an older
// and weaker one.
var signatures = []string{"X-Hub-Signature-256", "X-Hub-Signature"}

// Read finds the proof in a header. ok is false if there is no acceptable one: the header is missing or repeated, or the form
// is not supported, such as a signature other than SHA-256.
func Read(h http.Header) (p Proof, ok bool) {
	for _, name := range signatures {
		if list := h.Values(name); len(list) > 0 {
			mac, ok := signature(list)
			return Proof{signed: true, mac: mac}, ok
		}
	}
	if list := h.Values("X-Gitlab-Token"); len(list) > 0 {
		return Proof{token: secret.New(list[0])}, len(list) == 1 && list[0] != ""
	}
	list := h.Values("Authorization")
	if len(list) != 1 {
		return Proof{}, false
	}
	if scheme, token, _ := strings.Cut(list[0], " "); strings.EqualFold(scheme, "Bearer") {
		token = strings.TrimSpace(token)
		return Proof{token: secret.New(token)}, token != ""
	}
	_, password, ok := (&http.Request{Header: h}).BasicAuth()
	return Proof{token: secret.New(password)}, ok && password != ""
}

func signature(list []string) ([]byte, bool) {
	digits, ok := strings.CutPrefix(list[0], "sha256=")
	if !ok || len(list) != 1 || len(digits) != 2*sha256.Size || digits != strings.ToLower(digits) {
		return nil, false
	}
	mac, err := hex.DecodeString(digits)
	return mac, err == nil
}

// Checker checks proofs.
type Checker struct {
	absent secret.String
	key    [32]byte
}

// NewChecker returns a Checker with random keys.
func NewChecker() *Checker {
	c := &Checker{}
	var absent [32]byte
	_, _ = rand.Read(absent[:]) // never fails
	_, _ = rand.Read(c.key[:])
	c.absent = secret.New(hex.EncodeToString(absent[:]))
	return c
}

// Verify reports whether a proof of this body matches one of the values. It always compares with n values and fills up with a
// random one, so that the duration reveals nothing about the secret.
func (c *Checker) Verify(p Proof, body []byte, values []secret.String, n int) bool {
	known := 0
	for i := range max(n, len(values)) {
		value, counts := c.absent, 0
		if i < len(values) && !values[i].Empty() {
			value, counts = values[i], 1
		}
		known |= c.compare(p, body, value) & counts
	}
	return known == 1
}

func (c *Checker) compare(p Proof, body []byte, value secret.String) int {
	if p.signed {
		h := hmac.New(sha256.New, []byte(value.Reveal()))
		h.Write(body)
		return subtle.ConstantTimeCompare(h.Sum(nil), p.mac)
	}
	// Hashing makes both texts equally long, as a constant-time comparison requires.
	return subtle.ConstantTimeCompare(c.hash(value.Reveal()), c.hash(p.token.Reveal()))
}

func (c *Checker) hash(text string) []byte {
	h := hmac.New(sha256.New, c.key[:])
	h.Write([]byte(text))
	return h.Sum(nil)
}
