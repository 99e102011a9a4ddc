package propose

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
)

// TestBodyStartsWithTheChange: lists of Azure DevOps have only the first 400 characters of a body.
func TestBodyStartsWithTheChange(t *testing.T) {
	long := Identity{strings.Repeat("n", 63), strings.Repeat("g", 253)}
	c := &Changes{Files: []File{{Path: "projects/line/project.json", Op: Modified}}, Digest: strings.Repeat("0a", 32)}
	text := []rune(body(long, c, plan.ID{1}))
	assert.Greater(t, len(text), 400)
	assert.Equal(t, c.Digest, digestOf(string(text[:400])))
}
