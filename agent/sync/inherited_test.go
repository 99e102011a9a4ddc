package sync

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChangedAncestor(t *testing.T) {
	parents := map[string]string{"c": "b", "b": "a", "x": "y", "y": "x", "lost": "nowhere"}
	for _, c := range []struct {
		open, touched, from string
		counts              bool
	}{
		{"c", "a", "a", true}, {"c", "c", "c", true}, {"a", "c", "", false}, {"x", "y", "y", true}, {"x", "a", "", false},
		{"lost", "a", "", false}, {"lost", "nowhere", "nowhere", true}, {"", "a", "", false},
	} {
		t.Run(c.touched+" changed, "+c.open+" open", func(t *testing.T) {
			from, counts := changedAncestor(c.open, []string{c.touched}, parents)
			assert.Equal(t, c.counts, counts, c)
			assert.Equal(t, c.from, from, c)
		})
	}
}

func TestOutcomeMessageIsBounded(t *testing.T) {
	var r Report
	r.setOutcome(errors.New("first " + strings.Repeat("x", 1<<20)))
	assert.Len(t, r.Message, maxMessage)
	assert.True(t, strings.HasPrefix(r.Message, "first "))
}
