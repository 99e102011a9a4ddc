package document

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestShellAssignments(t *testing.T) {
	for line, c := range map[string]struct {
		set, output string
		code        int
	}{
		"X=$(false)":                {code: 1},
		"X=$(echo a b)":             {set: "a b"},
		"X=v$(echo 1)-rc":           {set: "v1-rc"},
		`X="a b"`:                   {set: "a b"},
		"X=b sh -c 'printf \"$X\"'": {set: "old", output: "b"},
		"X=b false":                 {set: "old", code: 1},
	} {
		t.Run(line, func(t *testing.T) {
			s := NewShell(t, t.TempDir(), nil, "X=old")
			output, code := s.Try(t, line)
			assert.Equal(t, c.code, code)
			assert.Equal(t, c.output, output)
			if c.code == 0 {
				assert.Equal(t, c.set, s.Type(t, `printf "%s" "$X"`))
			}
		})
	}
}
