// Package secret holds the type of values that must never be printed.
package secret

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
)

const redacted = "REDACTED"

// String is a secret text. Every way of printing it (all format verbs, slog, JSON, YAML, text) gives REDACTED;
// only Reveal gives the value, so that a search for Reveal finds each place where a secret is used.
//
// The value is behind a function, because fmt calls no method of an unexported field of another type, and prints the content of its fields
// instead. Of a function, that is only an address.
type String struct{ reveal func() string }

// Redact replaces the secrets in a text. Call it before the text is cut or escaped: a secret that is cut or escaped is not found.
func Redact(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, redacted)
		}
	}
	return text
}

// New wraps a secret value.
func New(value string) String { return String{func() string { return value }} }

// Reveal returns the value itself.
func (s String) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Empty reports whether the value is empty.
func (s String) Empty() bool { return s.Reveal() == "" }

func (s String) String() string { return redacted }

// GoString makes %#v safe.
func (s String) GoString() string { return redacted }

// Format makes every format verb safe, also those that would print the struct's fields.
func (s String) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue implements slog.LogValuer.
func (s String) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON implements json.Marshaler.
func (s String) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// MarshalText implements encoding.TextMarshaler.
func (s String) MarshalText() ([]byte, error) { return []byte(redacted), nil }
