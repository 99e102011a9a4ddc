package propose

import (
	"crypto/sha1" //nolint:gosec // git's object ids are SHA-1; the id is a name, not a seal
	"encoding/json"
	"fmt"
	"path"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"stoker.io/stoker/agent/plan"
)

const (
	modificationPath = "attributes.lastModification"
	signaturePath    = "attributes.lastModificationSignature"
)

// modification returns the actor and the timestamp of a resource.json.
func modification(b []byte) (actor, at string) {
	m := gjson.GetBytes(b, modificationPath)
	return m.Get("actor").String(), m.Get("timestamp").String()
}

// withoutModification returns a resource.json without its modification. Text that is not JSON stays as it is.
func withoutModification(b []byte) []byte {
	if !json.Valid(b) { // unlike gjson, it limits the depth
		return b
	}
	for _, p := range []string{modificationPath, signaturePath} {
		if less, err := sjson.DeleteBytes(b, p); err == nil {
			b = less
		}
	}
	return b
}

// blobID returns the git blob id of content.
func blobID(content []byte) plan.ID {
	h := sha1.New() //nolint:gosec // see above
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return plan.ID(h.Sum(nil))
}

// parent returns the directory of a path, "" for one without a slash.
func parent(p string) string {
	if dir := path.Dir(p); dir != "." {
		return dir
	}
	return ""
}
