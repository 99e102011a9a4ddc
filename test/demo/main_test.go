package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The demo runs to its end, prints every step, and checks at least one fact in each.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent and runs the whole demo")
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, false), "%s", &out)
	for _, s := range steps {
		assert.Contains(t, out.String(), s.title)
	}
	assert.Greater(t, strings.Count(out.String(), "✓"), len(steps), "some steps check nothing")
}

// check prints a fact that holds, and returns an error for one that does not. The error ends the demo.
func TestFailedCheckEndsDemo(t *testing.T) {
	var out bytes.Buffer
	printer := &printer{out: &out}
	require.NoError(t, printer.check(true, "the grass is green"))
	require.ErrorContains(t, printer.check(false, "the %s is blue", "sky"), "the sky is blue")
	assert.Contains(t, out.String(), "the grass is green")
}
