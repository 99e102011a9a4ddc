package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A node is a JSON value that keeps the order of its keys: object, array, string, json.Number, bool or nil.
type node any

type object []member

type member struct {
	key   string
	value node
}

type array []node

func (o object) get(key string) (node, bool) {
	for _, m := range o {
		if m.key == key {
			return m.value, true
		}
	}
	return nil, false
}

// with returns a copy with the value of key replaced, or added at the end.
func (o object) with(key string, value node) object {
	out := append(object(nil), o...)
	for i := range out {
		if out[i].key == key {
			out[i].value = value
			return out
		}
	}
	return append(out, member{key, value})
}

const maxDepth = 200

func parseJSON(raw []byte) (node, error) {
	if !json.Valid(raw) {
		var v any
		return nil, json.Unmarshal(raw, &v) // for the error message
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := parseNode(dec, maxDepth)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func parseNode(dec *json.Decoder, depth int) (node, error) {
	if depth == 0 {
		return nil, errors.New("nested too deeply")
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		o := object{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := parseNode(dec, depth-1)
			if err != nil {
				return nil, err
			}
			o = o.with(key.(string), value) // a later key wins, as in the gateway's parser
		}
		_, err = dec.Token()
		return o, err
	case json.Delim('['):
		a := array{}
		for dec.More() {
			value, err := parseNode(dec, depth-1)
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

// pretty writes JSON like a gateway: two spaces of indent, HTML-safe strings, no newline at the end.
func pretty(v node) []byte {
	var b strings.Builder
	writeNode(&b, v, "\n", true)
	return []byte(b.String())
}

// compact writes JSON on one line without HTML escapes, as it goes into a signature.
func compact(v node) []byte {
	var b strings.Builder
	writeNode(&b, v, "", false)
	return []byte(b.String())
}

func writeNode(b *strings.Builder, v node, newline string, htmlSafe bool) {
	inner, colon := "", ":"
	if newline != "" {
		inner, colon = newline+"  ", ": "
	}
	switch v := v.(type) {
	case object:
		writeGroup(b, '{', '}', len(v), newline, inner, func(i int) {
			writeString(b, v[i].key, htmlSafe)
			b.WriteString(colon)
			writeNode(b, v[i].value, inner, htmlSafe)
		})
	case array:
		writeGroup(b, '[', ']', len(v), newline, inner, func(i int) { writeNode(b, v[i], inner, htmlSafe) })
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
