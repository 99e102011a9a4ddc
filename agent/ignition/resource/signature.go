package resource

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// Form is the way in which a gateway computes the signature of a resource.
type Form uint8

const (
	// Form83 is the form of Ignition 8.3, which hashes the hex digits of each file's SHA-256. It matched 1,240 of 1,244
	// signed resources of public repositories; the others were edited by hand.
	Form83 Form = iota
	// Form81 is the form of Ignition 8.1, which hashes each file's bytes.
	Form81
)

// FormOf returns the form of a version of Ignition. An unknown version (0.0) counts as 8.3.
func FormOf(major, minor int) Form {
	if major != 0 && (major < 8 || major == 8 && minor < 3) {
		return Form81
	}
	return Form83
}

const signatureKey = "lastModificationSignature"

// Signed is a resource.json, parsed for its signature.
type Signed struct {
	raw        []byte
	scope      int32
	version    int32
	text       string   // documentation or description, whichever is the last in the file
	flags      [3]byte  // locked, which is always 0; restricted; overridable
	files      []string // sorted
	attributes []member
	stored     gjson.Result
}

// member is a member of an object; the value has its offset in the text.
type member struct {
	key   string
	value gjson.Result
}

// ParseSigned parses a resource.json. It returns an error if no signature can be computed: the text is not JSON, or a
// field is not what a gateway writes.
func ParseSigned(raw []byte) (*Signed, error) {
	text := withoutMark(raw)
	if !json.Valid(text) {
		return nil, errors.New("not JSON")
	}
	top := gjson.ParseBytes(text)
	if !top.IsObject() {
		return nil, errors.New("not a JSON object")
	}
	s := &Signed{raw: raw}
	for _, m := range members(top) {
		if err := s.field(m); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(s.attributes, func(a, b member) int { return strings.Compare(a.key, b.key) })
	return s, nil
}

// field parses one member of the resource.json.
func (s *Signed) field(m member) (err error) {
	switch m.key {
	case "scope":
		s.scope, err = scopeBits(m.value)
	case "version":
		var n int64
		n, err = strconv.ParseInt(m.value.Raw, 10, 32)
		s.version = int32(n)
	case "documentation", "description":
		if m.value.Type == gjson.String {
			s.text = m.value.Str
		}
	case "restricted":
		s.flags[1] = bit(m.value)
	case "overridable":
		s.flags[2] = bit(m.value)
	case "files":
		s.files, err = fileNames(m.value)
	case "attributes":
		if !m.value.IsObject() {
			return errors.New(`"attributes" is not an object`)
		}
		s.attributes = members(m.value)
		for _, a := range s.attributes {
			if a.key == signatureKey && a.value.Type == gjson.String {
				s.stored = a.value
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%q: %w", m.key, err)
	}
	return nil
}

// Stored returns the signature that the resource has, or "".
func (s *Signed) Stored() string { return s.stored.Str }

// Files returns the names of the files of the resource, sorted.
func (s *Signed) Files() []string { return s.files }

// Signature computes the signature: the SHA-256, in hex, of scope, description, version, three flags, the
// files, and the attributes except the signature itself. content writes the content of a file. (The algorithm was
// verified against public repositories; see Form83. The first flag, whether the resource is locked, is not in the file
// and was 0 in all of them.)
func (s *Signed) Signature(form Form, content func(w io.Writer, name string) error) (string, error) {
	h := sha256.New()
	putInt(h, s.scope)
	h.Write([]byte(s.text))
	putInt(h, s.version)
	h.Write(s.flags[:])
	for _, name := range s.files {
		h.Write([]byte(name))
		if err := signFile(h, form, name, content); err != nil {
			return "", fmt.Errorf("sign %s: %w", name, err)
		}
	}
	for _, a := range s.attributes {
		if a.key != signatureKey {
			h.Write([]byte(a.key))
			h.Write(compact(nil, a.value))
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func signFile(h hash.Hash, form Form, name string, content func(io.Writer, string) error) error {
	if form == Form81 {
		return content(h, name)
	}
	digest := sha256.New()
	if err := content(digest, name); err != nil {
		return err
	}
	h.Write(hex.AppendEncode(nil, digest.Sum(nil)))
	return nil
}

// WithSignature returns the resource.json with another signature and otherwise unchanged. It returns a resource without a
// signature as it is.
func (s *Signed) WithSignature(signature string) []byte {
	if s.stored.Raw == "" {
		return s.raw
	}
	at := len(s.raw) - len(withoutMark(s.raw)) + s.stored.Index
	return slices.Concat(s.raw[:at], AppendString(nil, signature), s.raw[at+len(s.stored.Raw):])
}

// members returns the members of an object in order. Of duplicate keys, the last value counts at the position of the
// first, as in Gson.
func members(object gjson.Result) []member {
	var list []member
	at := make(map[string]int)
	object.ForEach(func(key, value gjson.Result) bool {
		if i, ok := at[key.Str]; ok {
			list[i].value = value
			return true
		}
		at[key.Str] = len(list)
		list = append(list, member{key.Str, value})
		return true
	})
	return list
}

// scopeBits parses the letters of a scope: gateway, designer, client; A is all of them and N none.
func scopeBits(v gjson.Result) (int32, error) {
	if v.Type != gjson.String {
		return 0, errors.New("not a string")
	}
	var scope int32
	for _, letter := range v.Str {
		switch letter {
		case 'A':
			scope |= 7
		case 'G':
			scope |= 1
		case 'D':
			scope |= 2
		case 'C':
			scope |= 4
		case 'N':
		default:
			return 0, fmt.Errorf("unknown letter %q", letter)
		}
	}
	return scope, nil
}

func fileNames(v gjson.Result) ([]string, error) {
	if !v.IsArray() {
		return nil, errors.New("not a list")
	}
	var names []string
	for _, name := range v.Array() {
		if name.Type != gjson.String {
			return nil, errors.New("not a list of names")
		}
		names = append(names, name.Str)
	}
	if name, found := duplicate(names); found {
		return nil, fmt.Errorf("%q is listed twice", name)
	}
	return names, nil
}

// duplicate sorts names and returns one that occurs twice. A gateway writes no duplicates, and each costs a read of the file.
func duplicate(names []string) (string, bool) {
	slices.Sort(names)
	for i, name := range names[min(1, len(names)):] {
		if name == names[i] {
			return name, true
		}
	}
	return "", false
}

func bit(v gjson.Result) byte {
	if v.Type == gjson.True {
		return 1
	}
	return 0
}

func putInt(h hash.Hash, n int32) { h.Write(binary.BigEndian.AppendUint32(nil, uint32(n))) }

// compact appends a value as a gateway writes it when it signs: without white space, members in order, numbers as
// spelled, strings without HTML-safe escapes.
func compact(b []byte, v gjson.Result) []byte {
	switch {
	case v.IsObject():
		b = append(b, '{')
		for i, m := range members(v) {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, m.key, "")
			b = append(b, ':')
			b = compact(b, m.value)
		}
		return append(b, '}')
	case v.IsArray():
		b = append(b, '[')
		for i, item := range v.Array() {
			if i > 0 {
				b = append(b, ',')
			}
			b = compact(b, item)
		}
		return append(b, ']')
	case v.Type == gjson.String:
		return appendString(b, v.Str, "")
	}
	return append(b, bytes.TrimSpace([]byte(v.Raw))...)
}

// htmlUnsafe are the characters that a gateway escapes in the strings of its files, besides those that JSON requires. This is
// Gson's default (htmlSafe); all 63 views of a public repository show it. encoding/json escapes other characters.
const htmlUnsafe = "<>&='"

// AppendString appends a string as JSON with the escapes that a gateway uses. Invalid UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte { return appendString(b, s, htmlUnsafe) }

// appendString is AppendString with the characters to escape. Signatures escape none beyond those that JSON requires.
func appendString(b []byte, s, escaped string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r < ' ', r == '\u2028', r == '\u2029', strings.ContainsRune(escaped, r):
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
