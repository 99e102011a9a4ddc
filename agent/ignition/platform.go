package ignition

import (
	"context"
	"net/http"
	"strings"
)

// Platform is what a gateway of any version reveals without a token. Unknown fields are empty.
type Platform struct {
	Version Version
	// Role is the node's role in a redundant pair: Independent, Master or Backup.
	Role string
}

// Platform returns version and role: GET /system/gwinfo [IA]. It returns the zero Platform if the response is not that of a
// gateway.
func (c *Client) Platform(ctx context.Context) (Platform, error) {
	got, err := c.do(ctx, call{method: http.MethodGet, path: "/system/gwinfo", public: true})
	if err != nil {
		return Platform{}, err
	}
	return parsePlatform(string(got.body)), nil
}

// parsePlatform parses text of the form key=value;… [IA].
func parsePlatform(body string) Platform {
	var p Platform
	for pair := range strings.SplitSeq(body, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch strings.TrimSpace(key) {
		case "Version":
			p.Version = ParseVersion(value)
		case "RedundancyStatus":
			p.Role = oneLine(value, 40)
		}
	}
	return p
}
