package propose

import (
	"encoding/json"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
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
