package lead

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The commit of an artifact is known when its layer has arrived, which takes longer than an answer of git.
func TestPollLimit(t *testing.T) {
	for address, c := range map[string]struct {
		limit time.Duration
		says  string
	}{
		"https://git.example.com/plants/line.git": {5 * time.Minute, "git did not answer within 5m0s"},
		"oci://registry.example.com/plants/line":  {30 * time.Minute, "the layer did not arrive within 30m0s"},
		"oci+http://127.0.0.1:5000/plants/line":   {30 * time.Minute, "the layer did not arrive within 30m0s"},
	} {
		t.Run(address, func(t *testing.T) {
			limit, late := pollLimit(address)
			assert.Equal(t, c.limit, limit)
			assert.ErrorContains(t, late, c.says)
		})
	}
}
