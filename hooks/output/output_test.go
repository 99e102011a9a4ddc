package output

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTableEscapesTerminalControls(t *testing.T) {
	var b bytes.Buffer
	WriteTable(&b, []string{"A", "B"}, [][]string{{"x\x1b[2J\u202ey", ""}, {"a\tb\nc", "d"}})
	for _, r := range []rune{0x1b, 0x202e} {
		assert.False(t, slices.Contains([]rune(b.String()), r))
	}
	assert.Equal(t, "A         B\nx?[2J?y   -\na b c     d\n", b.String())
}

func TestCleanText(t *testing.T) {
	assert.Equal(t, "\tx␛[2J␀␍\n?y?�", CleanText("\tx\x1b[2J\x00\r\n\u202ey\u0085\xff"))
}
