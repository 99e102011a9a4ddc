package references

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// segment is a key of an object, or an index of a list.
type segment struct {
	key   []byte // part of the content, unless it had escapes
	index int    // isKey or wantsKey for an object
}

const (
	isKey    = -1
	wantsKey = -2 // the key was not read yet
)

// is reports whether the segment is a key.
func (s segment) is(key string) bool { return s.index == isKey && string(s.key) == key }

// visitor is called by walk. at is the path of a value; it changes after the call.
type visitor interface {
	// enter begins an object, leave ends it.
	enter(at []segment)
	leave(at []segment)
	// scalar is a value that is neither an object nor a list. raw is its JSON: see unquote.
	scalar(at []segment, raw []byte)
}

var errNotRead = errors.New("the JSON is nested too deeply or not complete")

// walk reads JSON once, with memory for the open brackets only. It does not check the syntax, which the sync does before it writes the
// file, and which encoding/json does at a tenth of the speed.
func walk(content []byte, v visitor) error {
	var at []segment // of the value that comes next
	for i := 0; i < len(content); {
		inObject := len(at) > 0 && at[len(at)-1].index < 0
		switch c := content[i]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			i++
			continue
		case '{', '[':
			i++
			if len(at) == maxDepth {
				return errNotRead
			}
			if c == '[' {
				at = append(at, segment{})
				continue
			}
			v.enter(at)
			at = append(at, segment{index: wantsKey})
			continue
		case '}', ']':
			i++
			if len(at) == 0 || inObject != (c == '}') {
				return errNotRead
			}
			if at = at[:len(at)-1]; inObject {
				v.leave(at)
			}
		default:
			n := scalarLength(content[i:])
			if n == 0 {
				return errNotRead
			}
			raw := content[i : i+n]
			i += n
			if last := len(at) - 1; inObject && at[last].index == wantsKey {
				at[last] = segment{keyOf(raw), isKey}
				continue
			}
			v.scalar(at, raw)
		}
		if len(at) == 0 {
			return nil
		}
		if last := &at[len(at)-1]; last.index < 0 {
			last.index = wantsKey
		} else {
			last.index++
		}
	}
	return errNotRead
}

// scalarLength returns the length of the string, number or word at the beginning of a text; 0 if a string has no end.
func scalarLength(text []byte) int {
	if text[0] != '"' {
		n := bytes.IndexAny(text[1:], " \t\r\n,:]}{[\"")
		if n < 0 {
			return len(text)
		}
		return n + 1
	}
	for i := 1; ; {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return 0
		}
		end := i + n
		escapes := 0
		for text[end-escapes-1] == '\\' {
			escapes++
		}
		if i = end + 1; escapes%2 == 0 {
			return i
		}
	}
}

// keyOf returns the text of a key.
func keyOf(raw []byte) []byte {
	if len(raw) >= 2 && bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	key, _ := unquote(raw)
	return []byte(key)
}

// unquote returns the text of a string. ok is false for any other value, and for a text that is longer than a name.
func unquote(raw []byte) (text string, ok bool) {
	switch {
	case len(raw) < 2 || raw[0] != '"' || len(raw) > 6*maxName:
		return "", false
	case bytes.IndexByte(raw, '\\') < 0:
		text = string(raw[1 : len(raw)-1])
	case json.Unmarshal(raw, &text) != nil:
		return "", false
	}
	return text, len(text) <= maxName
}

// pointer returns the JSON pointer of a path, cut after maxPointer bytes.
func pointer(at []segment) string {
	var b strings.Builder
	for _, s := range at {
		b.WriteByte('/')
		if s.index >= 0 {
			b.WriteString(strconv.Itoa(s.index))
		} else {
			for _, c := range s.key[:min(len(s.key), maxPointer)] {
				switch c {
				case '~':
					b.WriteString("~0")
				case '/':
					b.WriteString("~1")
				default:
					b.WriteByte(c)
				}
			}
		}
		if b.Len() > maxPointer {
			return b.String()[:maxPointer] + "…"
		}
	}
	return b.String()
}

// property returns a path as Perspective writes it, such as props.columns[3].viewPath. ok is false if its keys together are longer than maxName.
func property(at []segment) (path string, ok bool) {
	length := 0
	for _, s := range at {
		length += len(s.key) + len(".")
	}
	if length > maxName {
		return "", false
	}
	var b strings.Builder
	for i, s := range at {
		switch {
		case s.index >= 0:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case i > 0:
			b.WriteByte('.')
			fallthrough
		default:
			b.Write(s.key)
		}
	}
	return b.String(), true
}
