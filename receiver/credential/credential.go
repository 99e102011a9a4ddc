// Package credential tells whether who sends knows a secret. What is compared is compared in constant time, and the work is
// the same whether there is a secret or not.
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

// MaxValues is how many values one secret may have at a time: the new one and the old one while senders are changed over,
// with some room.
const MaxValues = 4

// Values reads a secret: one value a line, without the space around it. A secret of more values than MaxValues has none, so
// that a file of another kind is not taken for a list of secrets; ok is false then.
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

// Proof is what a request brings with it to show that its sender knows a secret.
type Proof struct {
	signed bool
	mac    []byte // of the body, where it is signed
	token  secret.String
}

// Signed reports whether the proof covers the body. It says nothing where there is none.
func (p Proof) Signed() bool { return p.signed }

// signatures are the headers of senders that sign. The first that is there counts: GitHub and Gitea send an older one, too,
// of a weaker kind.
var signatures = []string{"X-Hub-Signature-256", "X-Hub-Signature"}

// Read finds the proof in a header. ok is false where there is none that could be right: no header, one that is there
// twice, or a form that is not taken, such as a signature of another kind than SHA-256.
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
	nobody secret.String
	key    [32]byte
}

// NewChecker makes a Checker.
func NewChecker() *Checker {
	c := &Checker{}
	var nobody [32]byte
	_, _ = rand.Read(nobody[:]) // it never fails
	_, _ = rand.Read(c.key[:])
	c.nobody = secret.New(hex.EncodeToString(nobody[:]))
	return c
}

// Knows reports whether a proof of this body fits one of the values. It compares with n values, whatever there are: those
// that are missing are made up by one that nobody knows. So the time it takes says nothing about the secret.
func (c *Checker) Knows(p Proof, body []byte, values []secret.String, n int) bool {
	known := 0
	for i := range max(n, len(values)) {
		value, counts := c.nobody, 0
		if i < len(values) && !values[i].Empty() {
			value, counts = values[i], 1
		}
		known |= c.fits(p, body, value) & counts
	}
	return known == 1
}

func (c *Checker) fits(p Proof, body []byte, value secret.String) int {
	if p.signed {
		h := hmac.New(sha256.New, []byte(value.Reveal()))
		h.Write(body)
		return subtle.ConstantTimeCompare(h.Sum(nil), p.mac)
	}
	// Hashes have one length, whatever the texts have.
	return subtle.ConstantTimeCompare(c.hash(value.Reveal()), c.hash(p.token.Reveal()))
}

func (c *Checker) hash(text string) []byte {
	h := hmac.New(sha256.New, c.key[:])
	h.Write([]byte(text))
	return h.Sum(nil)
}
