package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// File names with a meaning in a resource's directory.
const (
	// File makes its directory a resource.
	File = "resource.json"
	// Thumbnail is the picture of a view that a Designer draws at every save.
	Thumbnail = "thumbnail.png"
)

// SameJSON reports whether two JSON texts mean the same: the order of keys, white space, escapes and a byte order mark
// do not count. Numbers are equal only if they are spelled equally (1 is not 1.0), because it is not known which
// spelling a gateway writes back. The last of duplicate keys counts, as in Gson. If the texts differ, SameJSON returns an
// error if one of them is not JSON, or not Unicode.
func SameJSON(a, b []byte) (bool, error) {
	return same(a, b, func(any) {})
}

// SameButModification reports whether two resource.json mean the same apart from attributes.lastModification and
// attributes.lastModificationSignature, which the gateway updates itself. Errors are those of SameJSON.
func SameButModification(a, b []byte) (bool, error) {
	return same(a, b, removeModification)
}

// MaxCompared is the size in bytes of the largest file that is compared by meaning. The largest JSON file in public Ignition
// repositories is a third of that.
const MaxCompared = 4 << 20

// Comparison returns the function that compares a file of the gateway by meaning, or nil if only bytes count.
func Comparison(name string) func(a, b []byte) (bool, error) {
	switch {
	case path.Base(name) == File:
		return SameButModification
	case path.Ext(name) == ".json":
		return SameJSON
	}
	return nil
}

// same compares two JSON texts after prepare has changed their values.
func same(a, b []byte, prepare func(any)) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	x, err := decode(a)
	if err != nil {
		return false, err
	}
	y, err := decode(b)
	if err != nil {
		return false, err
	}
	prepare(x)
	prepare(y)
	return reflect.DeepEqual(x, y), nil
}

func removeModification(v any) {
	if object, ok := v.(map[string]any); ok {
		if attributes, ok := object["attributes"].(map[string]any); ok {
			delete(attributes, "lastModification")
			delete(attributes, "lastModificationSignature")
		}
	}
}

func decode(b []byte) (any, error) {
	if !isUnicode(b) {
		return nil, errors.New("invalid JSON: it is not Unicode")
	}
	d := json.NewDecoder(bytes.NewReader(withoutMark(b)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("invalid JSON: data after the value")
	}
	return v, nil
}

// isUnicode reports whether all of a JSON text is valid Unicode: the decoder replaces invalid bytes and half surrogate pairs, so that
// different texts would be equal.
func isUnicode(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 {
			return true
		}
		r, n := escaped(b[i:])
		if low, m := escaped(b[i+n:]); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			n += m
		}
		b = b[i+n:]
	}
}

// escaped returns the code unit of the escape \uXXXX at the start of b, or 0 for anything else, and the bytes to skip.
func escaped(b []byte) (unit rune, n int) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, min(2, len(b))
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return 0, 2
	}
	return rune(v), 6
}
