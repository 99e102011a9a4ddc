// Package credential checks whether the sender of a request knows a secret. It compares in constant time and does the same work
// whether a secret exists or not.
package credential

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// MaxValues is the number of values that one secret may have: the old and the new one during a rotation, and some more.
const MaxValues = 4

// Values parses a secret: one value per line, without surrounding space. If there are more than MaxValues, or the content is longer than
// maxContent, ok is false, so that a file of another kind is not taken for a list of secrets.
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

// maxContent bounds the content of a secret in bytes.
const maxContent = 64 << 10

// Proof is the evidence in a request that its sender knows a secret.
type Proof struct {
	signed bool
	mac    []byte // of the body, if signed
	token  secret.String
	// standard are the signatures of Standard Webhooks, a specification, of a text that begins with prefix and ends with the body. A
	// sender may also show a token then, for secrets that it does not sign with.
	standard [][]byte
	prefix   string
}

// Signed reports whether the proof covers the body. It is meaningless if Read returned false.
func (p Proof) Signed() bool { return p.signed || len(p.standard) > 0 }

// signatures are the headers with signatures. The first one that is present counts, because GitHub and Gitea also send an older
// and weaker one.
var signatures = []string{"X-Hub-Signature-256", "X-Hub-Signature"}

// Read finds the proof in a header. ok is false if there is no acceptable one: the header is missing or repeated, or the form
// is not supported, such as a signature other than SHA-256. now decides whether a signature with a time is still valid.
func Read(h http.Header, now time.Time) (p Proof, ok bool) {
	if list := h.Values("Webhook-Signature"); len(list) > 0 {
		p, ok = standard(h, list, now)
		if token := h.Values("X-Gitlab-Token"); len(token) == 1 {
			p.token = secret.New(token[0])
		}
		return p, ok
	}
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

const (
	// tolerance is how old a signature of Standard Webhooks may be, or how far in the future: the value of the specification.
	tolerance = 5 * time.Minute
	// keyPrefix begins a signing key of Standard Webhooks, of which the rest is the base64 of the key.
	keyPrefix = "whsec_"
	// maxSignatures bounds the signatures of one delivery, one for each key during a rotation, and maxDeliveryID its id.
	maxSignatures, maxDeliveryID = 8, 256
)

// standard reads the signatures of Standard Webhooks, which GitLab sends if a webhook has a signing token.
func standard(h http.Header, list []string, now time.Time) (p Proof, ok bool) {
	ids, times := h.Values("Webhook-Id"), h.Values("Webhook-Timestamp")
	if len(list) != 1 || len(ids) != 1 || len(times) != 1 || ids[0] == "" || len(ids[0]) > maxDeliveryID {
		return Proof{}, false
	}
	at, err := strconv.ParseInt(times[0], 10, 64)
	if err != nil || now.Sub(time.Unix(at, 0)).Abs() > tolerance {
		return Proof{}, false
	}
	for i, one := range strings.Fields(list[0]) {
		text, found := strings.CutPrefix(one, "v1,")
		mac, err := base64.StdEncoding.DecodeString(text)
		if i == maxSignatures || found && (err != nil || len(mac) != sha256.Size) {
			return Proof{}, false
		}
		if found { // v1a is another method
			p.standard = append(p.standard, mac)
		}
	}
	p.prefix = ids[0] + "." + times[0] + "."
	return p, len(p.standard) > 0
}

// Checker checks proofs.
type Checker struct {
	absent secret.String // random: stands for a secret that does not exist
	key    [32]byte      // random: hashes tokens to the same length
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

// Verify reports whether a proof of this body matches one of the values; see Begin.
func (c *Checker) Verify(p Proof, body []byte, values []secret.String, atLeast int) bool {
	check := c.Begin(p, values, atLeast)
	_, _ = check.Write(body) // it never fails
	return check.Known()
}

// Check checks one proof while the body arrives.
type Check struct{ candidates []candidate }

// candidate is a value that the sender may know.
type candidate struct {
	mac    hash.Hash // of the body; nil for a token
	macs   [][]byte  // the signatures of the request, of which mac must equal one
	counts int       // 0 if mac has a random key, and so proves nothing
	token  int       // 1 if the token is the value
}

// Begin returns a Check of a proof against the values. It compares with at least atLeast values and fills up with a random one, so that
// the duration reveals nothing about the secret.
func (c *Checker) Begin(p Proof, values []secret.String, atLeast int) *Check {
	check := &Check{}
	for i := range max(atLeast, len(values)) {
		value, counts := c.absent, 0
		if i < len(values) && !values[i].Empty() {
			value, counts = values[i], 1
		}
		check.candidates = append(check.candidates, c.candidate(p, value, counts))
	}
	return check
}

func (c *Checker) candidate(p Proof, value secret.String, counts int) candidate {
	if p.signed {
		return candidate{mac: hmac.New(sha256.New, []byte(value.Reveal())), macs: [][]byte{p.mac}, counts: counts}
	}
	// Hashing makes both texts equally long, as a constant-time comparison requires.
	one := candidate{token: subtle.ConstantTimeCompare(c.hash(value.Reveal()), c.hash(p.token.Reveal())) & counts}
	if len(p.standard) > 0 {
		text, isKey := strings.CutPrefix(value.Reveal(), keyPrefix)
		key, err := base64.StdEncoding.DecodeString(text)
		if isKey {
			one.token = 0 // a signing key is never sent
		}
		if !isKey || err != nil || len(key) == 0 {
			key, counts = c.key[:], 0
		}
		one.mac, one.macs, one.counts = hmac.New(sha256.New, key), p.standard, counts
		_, _ = one.mac.Write([]byte(p.prefix))
	}
	return one
}

// Write adds a part of the body. It never fails.
func (c *Check) Write(part []byte) (int, error) {
	for _, one := range c.candidates {
		if one.mac != nil {
			_, _ = one.mac.Write(part)
		}
	}
	return len(part), nil
}

// Known reports whether the sender knows one of the values.
func (c *Check) Known() bool {
	known := 0
	for _, one := range c.candidates {
		known |= one.token
		if one.mac == nil {
			continue
		}
		sum := one.mac.Sum(nil)
		for _, mac := range one.macs {
			known |= subtle.ConstantTimeCompare(sum, mac) & one.counts
		}
	}
	return known == 1
}

func (c *Checker) hash(text string) []byte {
	h := hmac.New(sha256.New, c.key[:])
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Files holds secrets from files, which are reread periodically.
type Files struct {
	names    []string
	interval time.Duration
	log      *slog.Logger
	values   [][]secret.String
	all      atomic.Pointer[[]secret.String]
}

// ReadFiles reads the files. A file without a value is an error.
func ReadFiles(names []string, every time.Duration, log *slog.Logger) (*Files, error) {
	f := &Files{names: names, interval: every, log: log, values: make([][]secret.String, len(names))}
	for i, name := range names {
		values, err := read(name)
		if err != nil {
			return nil, err
		}
		if len(values) == 0 {
			return nil, fmt.Errorf("%s is empty: an empty secret would admit every caller", name)
		}
		f.values[i] = values
	}
	f.storeAll()
	return f, nil
}

func read(name string) ([]secret.String, error) {
	content, err := file.Read(name, maxContent)
	if err != nil {
		return nil, err
	}
	values, ok := Values(content)
	if !ok {
		return nil, fmt.Errorf("%s has more than %d lines: a secret has one value per line", name, MaxValues)
	}
	return values, nil
}

func (f *Files) storeAll() {
	var all []secret.String
	for _, values := range f.values {
		all = append(all, values...)
	}
	f.all.Store(&all)
}

// Values returns the values of all files.
func (f *Files) Values() []secret.String { return *f.all.Load() }

// Run rereads the files until ctx is done. A file that cannot be read keeps its values; an empty file loses them.
func (f *Files) Run(ctx context.Context) error {
	logged := make([]string, len(f.names))
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for i, name := range f.names {
			problem := ""
			values, err := read(name)
			switch {
			case err != nil:
				problem = err.Error()
			case len(values) == 0:
				problem, f.values[i] = name+" is empty", nil
			default:
				f.values[i] = values
			}
			if problem != "" && problem != logged[i] {
				f.log.Error("an install-wide secret cannot be used", "file", name, "error", problem)
			}
			logged[i] = problem
		}
		f.storeAll()
	}
}
