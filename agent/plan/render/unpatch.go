package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Unpatch is the inverse of Patch for a file that the gateway changed after the patch: it returns now, the bytes on the gateway, with
// git's values at the paths of the edits. The error is ChangesRefused if a path is missing in either of the two.
func Unpatch(name string, git, now []byte, edits []Edit) ([]byte, error) {
	text, original := string(now), string(git)
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

// value looks up a path in a document. The result's Index is that in doc.
func value(doc string, path []segment) (gjson.Result, error) {
	body := strings.TrimPrefix(doc, byteOrderMark)
	if !json.Valid([]byte(body)) { // unlike gjson, it limits the depth
		return gjson.Result{}, errors.New("it is not JSON")
	}
	at, missing, err := find(body, path)
	if err != nil {
		return at, err
	}
	if len(missing) > 0 {
		return at, fmt.Errorf("%s has no %q", describe(path[:len(path)-len(missing)]), missing[0].name)
	}
	at.Index += len(doc) - len(body)
	return at, nil
}
