package ignition

import (
	"context"
	"net/http"
	"strings"
)

// Platform is what a gateway says of itself without a token, in older versions too: GET /system/gwinfo [IA]. What it
// does not say is empty.
type Platform struct {
	Version Version
	// Role is the node's part in a redundant pair: Independent, Master or Backup.
	Role string
}

// Platform asks for version and role. Where the answer is none of a gateway, all of it is zero.
func (c *Client) Platform(ctx context.Context) (Platform, error) {
	got, err := c.do(ctx, call{method: http.MethodGet, path: "/system/gwinfo", public: true})
	if err != nil {
		return Platform{}, err
	}
	return parsePlatform(string(got.body)), nil
}

// parsePlatform reads text of the form key=value;… [IA].
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
