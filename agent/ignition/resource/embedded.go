package resource

import (
	"bytes"
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A secret that is embedded in a configuration file is an object like
//
//	{"type": "Embedded", "data": {"ciphertext": "…", "encrypted_key": "…", "iv": "…", "protected": "…", "tag": "…"}}
//
// Gateways encrypt it with a key that, according to the vendor, is the same on every stock gateway. So a file with one is close to a
// file with the secret itself. embeddedNames are two of its keys: a file with both is taken for one with an embedded secret.
var embeddedNames = [...][]byte{[]byte(`"ciphertext"`), []byte(`"encrypted_key"`)}

// EmbeddedFinder looks for an embedded secret in a stream.
type EmbeddedFinder struct {
	found [len(embeddedNames)]bool
	tail  []byte // the last bytes, because a name may be in two pieces
}

// Found reports whether the stream so far has an embedded secret.
func (f *EmbeddedFinder) Found() bool { return f.found == [len(embeddedNames)]bool{true, true} }

// Add searches the next piece.
func (f *EmbeddedFinder) Add(p []byte) {
	const overlap = len(`"encrypted_key"`) - 1
	border := append(f.tail, p[:min(len(p), overlap)]...)
	for i, name := range embeddedNames {
		f.found[i] = f.found[i] || bytes.Contains(border, name) || bytes.Contains(p, name)
	}
	if len(p) >= overlap {
		border = p
	}
	f.tail = append(f.tail[:0:0], border[max(0, len(border)-overlap):]...)
}

// EmbeddedSecrets collects the files with embedded secrets among those that a sync writes.
type EmbeddedSecrets struct {
	// Refuse makes Check fail for them.
	Refuse bool

	paths []string // the first few
	files int
}

// maxEmbedded bounds the paths of a warning.
const maxEmbedded = 3

// Check closes c. It returns the error of c, or EmbeddedSecret if the file has an embedded secret and Refuse is set.
func (e *EmbeddedSecrets) Check(c *Checker) error {
	if err := c.Close(); err != nil {
		return err
	}
	if c.json == nil || !c.embedded.Found() {
		return nil
	}
	if e.Refuse {
		return failure.New(v1alpha1.ReasonEmbeddedSecret, "%s has an embedded secret, which every gateway with Ignition's default key can decrypt: "+
			"keep the secret in a secret provider and reference it, or set embeddedSecretPolicy: warn", failure.Quote(c.path))
	}
	if e.files++; len(e.paths) < maxEmbedded {
		e.paths = append(e.paths, failure.Quote(c.path))
	}
	return nil
}

// Warning returns a warning that names the first files, or "" if there are none.
func (e *EmbeddedSecrets) Warning() string {
	if e.files == 0 {
		return ""
	}
	list := strings.Join(e.paths, ", ")
	if more := e.files - len(e.paths); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s: embedded secrets are in git, and every gateway with Ignition's default key can decrypt them; keep them in a secret provider and reference them", list)
}
