package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Edit sets one value of a JSON file.
type Edit struct {
	// Path is an sjson path without modifiers: names and indexes joined by dots. A backslash escapes the next
	// character, and a colon before a number makes it a name.
	Path string
	// Value is the new value. In place of a string it is a text: 1.10 gives "1.10". In place of null, or if the file has no value
	// there, it is JSON, or a text if it is not JSON. In place of any other value it must be JSON of the same type. In double quotes,
	// it is always a JSON string, which is decoded.
	Value string
	// Text makes Value the string itself, whatever it looks like. It replaces only a string or null, or adds a value.
	Text bool
}

const byteOrderMark = "\xef\xbb\xbf"

// Patch applies edits to a file in order. All other bytes stay as they are, and applying an edit twice has no further
// effect. Errors are PatchFailed and have the name of the file.
func Patch(name string, doc []byte, edits []Edit) ([]byte, error) {
	body := bytes.TrimPrefix(doc, []byte(byteOrderMark))
	mark := doc[:len(doc)-len(body)]
	if !json.Valid(body) || !utf8.Valid(body) {
		return nil, failure.New(v1alpha1.ReasonPatchFailed, "%s cannot be patched: it is not valid JSON in UTF-8", name)
	}
	text := string(body)
	for _, e := range edits {
		var err error
		if text, err = e.apply(text); err != nil {
			return nil, failure.New(v1alpha1.ReasonPatchFailed, "%s: set %q: %w", name, e.Path, err)
		}
	}
	return slices.Concat(mark, []byte(text)), nil
}

// maxSegments bounds the depth of a path.
const maxSegments = 256

// segment is one element of a path.
type segment struct {
	name  string
	index int // -1 for a name
}

// parsePath parses an Edit.Path.
func parsePath(path string) ([]segment, error) {
	if !utf8.ValidString(path) {
		return nil, errors.New("the path is not UTF-8")
	}
	var list []segment
	var name strings.Builder
	plain := true // no character of the part was escaped
	end := func() error {
		s := segment{name: name.String(), index: -1}
		if n, err := strconv.ParseUint(s.name, 10, 31); err == nil && plain && strconv.FormatUint(n, 10) == s.name {
			s.index = int(n)
		}
		if rest, ok := strings.CutPrefix(s.name, ":"); ok && plain && isNumber(rest) {
			s.name = rest
		}
		if s.name == "" {
			return errors.New("the path has a part without a name")
		}
		if list = append(list, s); len(list) > maxSegments {
			return fmt.Errorf("the path has more than %d parts", maxSegments)
		}
		name.Reset()
		plain = true
		return nil
	}
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '.':
			if err := end(); err != nil {
				return nil, err
			}
		case c == '\\' && i+1 < len(path):
			i++
			plain = false
			name.WriteByte(path[i])
		case strings.IndexByte(`\|#@*?`, c) >= 0:
			return nil, fmt.Errorf("%q has no meaning in a path; write a \\ before it if it is part of a name", c)
		default:
			name.WriteByte(c)
		}
	}
	return list, end()
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 63)
	return err == nil
}

// apply returns doc with the value set.
func (e *Edit) apply(doc string) (string, error) {
	path, err := parsePath(e.Path)
	if err != nil {
		return "", err
	}
	value, missing, err := find(doc, path)
	if err != nil {
		return "", err
	}
	if len(missing) > 0 {
		return e.add(doc, value, missing)
	}
	raw, err := e.replacement(value)
	if err != nil {
		return "", err
	}
	return doc[:value.Index] + raw + doc[value.Index+len(value.Raw):], nil
}

// find returns the value at the longest part of a path that the document has, and the rest of the path. The error says why nothing can be
// added there.
func find(doc string, path []segment) (value gjson.Result, missing []segment, err error) {
	value = gjson.Parse(doc)
	value.Raw = strings.TrimRight(value.Raw, " \t\r\n")
	for i, s := range path {
		next, err := s.lookUp(value)
		if err != nil {
			return value, nil, fmt.Errorf("%s %w", describe(path[:i]), err)
		}
		if !next.Exists() {
			return value, path[i:], nil
		}
		value = next
	}
	return value, nil, nil
}

// describe names the value at a path for a message.
func describe(path []segment) string {
	if len(path) == 0 {
		return "the file"
	}
	names := make([]string, len(path))
	for i, s := range path {
		names[i] = s.name
	}
	return strconv.Quote(strings.Join(names, "."))
}

// lookUp looks up a segment in a value. The error says why a missing segment cannot be added.
func (s segment) lookUp(parent gjson.Result) (found gjson.Result, err error) {
	switch {
	case parent.IsObject():
		parent.ForEach(func(key, value gjson.Result) bool { // the last of duplicate names wins, as in Gson
			if key.Str == s.name {
				found = value
			}
			return true
		})
		return found, nil
	case parent.IsArray() && s.index < 0:
		return found, fmt.Errorf("is a list, and %q is not an index", s.name)
	case parent.IsArray():
		n := 0
		parent.ForEach(func(_, value gjson.Result) bool {
			if n == s.index {
				found = value
			}
			n++
			return n <= s.index
		})
		if n < s.index {
			return found, fmt.Errorf("is a list of %d, and %d is beyond its end", n, s.index)
		}
		return found, nil
	}
	return found, fmt.Errorf("is %s, which has no %q", typeOf(parent), s.name)
}

// replacement returns the JSON that replaces a value. It has the same type, unless the old value is null.
func (e *Edit) replacement(old gjson.Result) (string, error) {
	literal := strings.TrimSpace(e.Value)
	switch {
	case old.Type == gjson.String:
		if text := e.text(); text != old.Str {
			return quote(text), nil
		}
		return old.Raw, nil // keep its escapes
	case old.Type == gjson.Null:
		return e.newValue(), nil
	case !json.Valid([]byte(literal)) || e.Text || typeOf(gjson.Parse(literal)) != typeOf(old):
		return "", fmt.Errorf("the value is %s, and the new value %.80q is not; set a value of the same type", typeOf(old), e.Value)
	}
	return literal, nil
}

// newValue returns the JSON of a value that replaces null or is added.
func (e *Edit) newValue() string {
	literal := strings.TrimSpace(e.Value)
	if e.Text || !json.Valid([]byte(literal)) || literal[0] == '"' {
		return quote(e.text())
	}
	return literal
}

// text returns the value as a string. Unless Text is set, it decodes a JSON string, so that an edit can set a text that looks
// like a number at a new path.
func (e *Edit) text() string {
	literal := strings.TrimSpace(e.Value)
	if !e.Text && strings.HasPrefix(literal, `"`) && json.Valid([]byte(literal)) {
		return gjson.Parse(literal).Str
	}
	return e.Value
}

func quote(s string) string { return string(resource.AppendString(nil, s)) }

func typeOf(v gjson.Result) string {
	switch {
	case v.IsObject():
		return "an object"
	case v.IsArray():
		return "a list"
	}
	switch v.Type {
	case gjson.String:
		return "a text"
	case gjson.Number:
		return "a number"
	case gjson.True, gjson.False:
		return "true or false"
	}
	return "null"
}

// Unpatch is the inverse of Patch for a file that the gateway changed after the patch: it returns onGateway with git's values at the paths
// of the edits. The error is ChangesRefused if one of the two is not JSON or lacks a path.
func Unpatch(name string, git, onGateway []byte, edits []Edit) ([]byte, error) {
	text, original := string(onGateway), string(git)
	for _, e := range slices.Backward(edits) {
		path, err := parsePath(e.Path)
		if err != nil {
			return nil, err
		}
		before, err := value(original, path)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonChangesRefused, "%s: the patch %q adds a value that git does not have: change it in git: %w", name, e.Path, err)
		}
		after, err := value(text, path)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonChangesRefused, "%s: the value of the patch %q was removed on the gateway: %w", name, e.Path, err)
		}
		text = text[:after.Index] + before.Raw + text[after.Index+len(after.Raw):]
	}
	return []byte(text), nil
}

// value looks up a path in a document, which may begin with a byte order mark. The result's Index counts from the start of doc.
func value(doc string, path []segment) (gjson.Result, error) {
	body := strings.TrimPrefix(doc, byteOrderMark)
	if !json.Valid([]byte(body)) { // unlike gjson, it limits the depth
		return gjson.Result{}, errors.New("it is not JSON")
	}
	found, missing, err := find(body, path)
	if err != nil {
		return found, err
	}
	if len(missing) > 0 {
		return found, fmt.Errorf("%s has no %q", describe(path[:len(path)-len(missing)]), missing[0].name)
	}
	found.Index += len(doc) - len(body)
	return found, nil
}

// indent is one level of a gateway's indentation.
const indent = "  "

// add inserts a missing member or element into an existing container, in the layout of its siblings.
func (e *Edit) add(doc string, into gjson.Result, path []segment) (string, error) {
	for i, s := range path[1:] {
		if s.index >= 0 {
			return "", fmt.Errorf("there is no list %q for element %d; write :%d if it is a name", path[i].name, s.index, s.index)
		}
	}
	l := layoutOf(doc, into)
	value := e.newValue()
	for depth, s := range slices.Backward(path[1:]) {
		value = "{" + l.space(depth+1) + quote(s.name) + l.colon + value + l.space(depth) + "}"
	}
	if into.IsObject() {
		value = quote(path[0].name) + l.colon + value
	}
	if l.empty {
		closing := into.Index + len(into.Raw) - 1
		return doc[:into.Index+1] + l.before + value + l.outer + doc[closing:], nil
	}
	return doc[:l.end] + "," + l.before + value + doc[l.end:], nil
}

// layout is the formatting of a container's members.
type layout struct {
	before string // white space before a member
	outer  string // white space before the closing bracket of an empty container once it is filled
	colon  string
	end    int // end of the last member
	empty  bool
}

// space returns the white space before a member that is nested deeper.
func (l *layout) space(deeper int) string {
	if !strings.Contains(l.before, "\n") {
		return ""
	}
	return l.before + strings.Repeat(indent, deeper)
}

// layoutOf returns the layout of the members of into.
func layoutOf(doc string, into gjson.Result) layout {
	l := layout{empty: true, colon: ":"}
	if strings.Contains(doc, "\n") {
		l.colon = ": "
	}
	into.ForEach(func(key, value gjson.Result) bool {
		start := value.Index
		if into.IsObject() {
			start = key.Index
			l.colon = doc[key.Index+len(key.Raw) : value.Index]
		}
		before := strings.TrimRight(doc[:start], " \t\r\n")
		l.before, l.end, l.empty = doc[len(before):start], value.Index+len(value.Raw), false
		return true
	})
	if l.empty && strings.Contains(doc, "\n") {
		line := doc[strings.LastIndexByte(doc[:into.Index], '\n')+1 : into.Index]
		white := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		l.outer = "\n" + white
		l.before = l.outer + indent
	}
	return l
}
