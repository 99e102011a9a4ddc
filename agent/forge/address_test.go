package forge

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestShownURL(t *testing.T) {
	for _, bad := range []string{"javascript:alert(1)", "https://x/<b>", "https://user:p@x/", "https://x/" + strings.Repeat("a", 600), "x", "https://x/a)b"} {
		t.Run(bad, func(t *testing.T) { assert.Empty(t, shownURL(bad)) })
	}
}
