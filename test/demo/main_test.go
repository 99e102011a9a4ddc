package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check prints a fact that holds, and returns an error for one that does not. The error ends the demo.
func TestFailedCheckEndsDemo(t *testing.T) {
	var out bytes.Buffer
	printer := &printer{out: &out}
	require.NoError(t, printer.check(true, "the grass is green"))
	require.ErrorContains(t, printer.check(false, "the %s is blue", "sky"), "the sky is blue")
	assert.Contains(t, out.String(), "the grass is green")
}
