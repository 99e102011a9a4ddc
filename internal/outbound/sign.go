package outbound

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"stoker.io/stoker/internal/secret"
)

// Sign adds the HMAC-SHA-256 of a body in the header and the form of GitHub, which Stoker's own receiver checks. Of a key with several
// lines, as during a rotation, the first one signs.
func Sign(header http.Header, key secret.String, body []byte) {
	first, _, _ := strings.Cut(strings.TrimSpace(key.Reveal()), "\n")
	mac := hmac.New(sha256.New, []byte(strings.TrimSpace(first)))
	mac.Write(body)
	header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
}
