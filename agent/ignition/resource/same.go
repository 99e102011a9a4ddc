package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Names of files in the directory of a resource that mean something to the gateway.
const (
	// File is the name of the file that makes a directory a resource.
	File = "resource.json"
	// Thumbnail is the name of the picture that a Designer draws of a view by itself at every save.
	Thumbnail = "thumbnail.png"
)

// SameJSON reports whether two JSON texts mean the same: order of keys, white space, escapes and a byte order mark do
// not count. Numbers are the same only if they are written the same (1 is not 1.0): which of them a gateway would
// write back is not known. Of a key that occurs twice the last one counts, as in Gson. An error says that one of them
// is no JSON.
func SameJSON(a, b []byte) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	x, y, err := decodeBoth(a, b)
	if err != nil {
		return false, err
	}
	return equal(x, y), nil
}

// SameButModification reports whether two resource.json mean the same when attributes.lastModification and
// attributes.lastModificationSignature are left out, which the gateway renews by itself. An error says that one of them
// is no JSON.
func SameButModification(a, b []byte) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	x, y, err := decodeBoth(a, b)
	if err != nil {
		return false, err
	}
	return equal(unmodified(x), unmodified(y)), nil
}

func unmodified(v any) any {
	if object, ok := v.(map[string]any); ok {
		if attributes, ok := object["attributes"].(map[string]any); ok {
			delete(attributes, "lastModification")
			delete(attributes, "lastModificationSignature")
		}
	}
	return v
}

func decodeBoth(a, b []byte) (x, y any, err error) {
	if x, err = decode(a); err != nil {
		return nil, nil, err
	}
	y, err = decode(b)
	return x, y, err
}

func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(withoutMark(b)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("no JSON: something follows the value")
	}
	return v, nil
}

func equal(x, y any) bool {
	switch x := x.(type) {
	case map[string]any:
		y, ok := y.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			if w, ok := y[k]; !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := y.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return x == y // nil, bool, string, json.Number
}
