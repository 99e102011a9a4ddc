package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent and tells the whole story")
	}
	var said bytes.Buffer
	require.NoError(t, run(t.Context(), &said, false), "%s", &said)
	for _, s := range steps {
		assert.Contains(t, said.String(), s.title)
	}
	assert.Greater(t, strings.Count(said.String(), "✓"), len(steps), "every step is checked")
}

func TestACheckThatFailsEndsTheDemo(t *testing.T) {
	var said bytes.Buffer
	tell := &teller{out: &said}
	require.NoError(t, tell.check(true, "so it is"))
	require.ErrorContains(t, tell.check(false, "the %s is blue", "sky"), "the sky is blue")
	assert.Contains(t, said.String(), "so it is")
}
