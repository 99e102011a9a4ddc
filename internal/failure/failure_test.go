package failure

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestReason(t *testing.T) {
	err := fmt.Errorf("sync: %w", New(v1alpha1.ReasonGitUnreachable, "read: %w", io.ErrUnexpectedEOF))
	assert.Equal(t, v1alpha1.ReasonGitUnreachable, Reason(err, v1alpha1.ReasonNoSpace))
	assert.True(t, Is(err, v1alpha1.ReasonGitUnreachable))
	assert.False(t, Is(err, v1alpha1.ReasonNoSpace))
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, v1alpha1.ReasonNoSpace, Reason(errors.New("plain"), v1alpha1.ReasonNoSpace))
	assert.False(t, Is(nil, v1alpha1.ReasonNoSpace))
}

func TestQuote(t *testing.T) {
	most := strings.Repeat("a", MaxQuoted-1)
	for _, c := range []struct{ name, text, want string }{
		{"spaces and control characters", " a\nb\x1b ", `"a\nb\x1b"`},
		{"longest", most + "a", `"` + most + `a"`},
		{"cut", most + "ab", `"` + most + `a…"`},
		{"cut inside a character", most + "éb", `"` + most + `…"`},
		{"cut after a character", most[1:] + "éb", `"` + most[1:] + `é…"`},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, Quote(c.text)) })
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		name, text string
		n          int
		want       string
	}{
		{"fits", "abc", 3, "abc"},
		{"cut", "abcde", 4, "a…"},
		{"cut at a character", "ééé", 5, "é…"},
		{"no room for the ellipsis", "é", 1, ""},
		{"invalid UTF-8", "\xff", 3, "\uFFFD"},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, Cut(c.text, c.n)) })
	}
}
