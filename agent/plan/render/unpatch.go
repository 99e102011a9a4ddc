package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Unpatch is the inverse of Patch for a file that was changed afterwards: it returns now with git's own values at the places of the edits.
// All other bytes are those of now. The error is ChangesRefused if a place is missing in either of the two.
func Unpatch(name string, git, now []byte, edits []Edit) ([]byte, error) {
	text, original := string(now), string(git)
	for _, e := range slices.Backward(edits) {
		path, err := parsePath(e.Path)
		if err != nil {
			return nil, err
		}
		was, err := value(original, path)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonChangesRefused, "%s: the patch %q adds a value that git does not have: change it in git: %w", name, e.Path, err)
		}
		is, err := value(text, path)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonChangesRefused, "%s: the value of the patch %q was removed on the gateway: %w", name, e.Path, err)
		}
		text = text[:is.Index] + was.Raw + text[is.Index+len(is.Raw):]
	}
	return []byte(text), nil
}

// value looks up a path in a document. The result's Index is that in doc.
func value(doc string, path []segment) (gjson.Result, error) {
	body := strings.TrimPrefix(doc, byteOrderMark)
	at := gjson.Parse(body)
	if !gjson.Valid(body) {
		return at, errors.New("it is not JSON")
	}
	at.Raw = strings.TrimRight(at.Raw, " \t\r\n")
	for i, s := range path {
		next, err := s.in(at)
		if err != nil {
			return at, fmt.Errorf("%s %w", place(path[:i]), err)
		}
		if !next.Exists() {
			return at, fmt.Errorf("%s has no %q", place(path[:i]), s.name)
		}
		at = next
	}
	at.Index += len(doc) - len(body)
	return at, nil
}
