// Package ordered reads and writes JSON whose objects keep the order of their keys, as a gateway writes and signs it.
package ordered

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Value is a JSON value: Object, Array, string, json.Number, bool or nil. A value that is only written may also be another
// number.
type Value any

// Object is a JSON object.
type Object []Member

// Member is a key, which is a string, and its value. It is an array, not a struct, so that other packages can write literals
// without field names: Object{{"name", "P"}, {"enabled", true}}.
type Member [2]any

// Key returns the key.
func (m Member) Key() string { return m[0].(string) }

// Value returns the value.
func (m Member) Value() Value { return m[1] }

// Array is a JSON array.
type Array []Value

// Get returns the value of a key, and whether the object has it.
func (o Object) Get(key string) (Value, bool) {
	for _, m := range o {
		if m.Key() == key {
			return m.Value(), true
		}
	}
	return nil, false
}

// With returns a copy with the value of key replaced, or added at the end.
func (o Object) With(key string, value Value) Object {
	out := append(Object(nil), o...)
	for i := range out {
		if out[i].Key() == key {
			out[i][1] = value
			return out
		}
	}
	return append(out, Member{key, value})
}

const maxDepth = 200

// Parse reads one JSON value.
func Parse(raw []byte) (Value, error) {
	if !json.Valid(raw) {
		var v any
		return nil, json.Unmarshal(raw, &v) // for the error message
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := parseValue(dec, maxDepth)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func parseValue(dec *json.Decoder, depth int) (Value, error) {
	if depth == 0 {
		return nil, errors.New("nested too deeply")
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		o := Object{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := parseValue(dec, depth-1)
			if err != nil {
				return nil, err
			}
			o = o.With(key.(string), value) // a later key wins, as in the gateway's parser
		}
		_, err = dec.Token()
		return o, err
	case json.Delim('['):
		a := Array{}
		for dec.More() {
			value, err := parseValue(dec, depth-1)
			if err != nil {
				return nil, err
			}
			a = append(a, value)
		}
		_, err = dec.Token()
		return a, err
	}
	return tok, nil
}

// Pretty writes JSON like a gateway: two spaces of indent, HTML-safe strings, no newline at the end.
func Pretty(v Value) []byte {
	var b strings.Builder
	writeValue(&b, v, "\n", true)
	return []byte(b.String())
}

// Compact writes JSON on one line without HTML escapes, as it goes into a signature.
func Compact(v Value) []byte {
	var b strings.Builder
	writeValue(&b, v, "", false)
	return []byte(b.String())
}

func writeValue(b *strings.Builder, v Value, newline string, htmlSafe bool) {
	inner, colon := "", ":"
	if newline != "" {
		inner, colon = newline+"  ", ": "
	}
	switch v := v.(type) {
	case Object:
		writeGroup(b, '{', '}', len(v), newline, inner, func(i int) {
			writeString(b, v[i].Key(), htmlSafe)
			b.WriteString(colon)
			writeValue(b, v[i].Value(), inner, htmlSafe)
		})
	case Array:
		writeGroup(b, '[', ']', len(v), newline, inner, func(i int) { writeValue(b, v[i], inner, htmlSafe) })
	case string:
		writeString(b, v, htmlSafe)
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v)
	}
}

func writeGroup(b *strings.Builder, open, shut byte, n int, newline, inner string, item func(int)) {
	b.WriteByte(open)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(inner)
		item(i)
	}
	if n > 0 {
		b.WriteString(newline)
	}
	b.WriteByte(shut)
}

func writeString(b *strings.Builder, s string, htmlSafe bool) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < 0x20, r == 0x2028, r == 0x2029, htmlSafe && strings.ContainsRune("<>&='", r):
			fmt.Fprintf(b, `\u%04x`, r)
		case r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// Dig returns the value below nested keys, or nil.
func Dig(v Value, keys ...string) Value {
	for _, k := range keys {
		o, _ := v.(Object)
		v, _ = o.Get(k)
	}
	return v
}
