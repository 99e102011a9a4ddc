package oci

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
)

// Agents of different versions compare the ids of commits, so the text must never change.
func TestCommitText(t *testing.T) {
	a, err := parseManifest([]byte(`{"layers":[{"mediaType":"a+tar+gzip","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":1}],
		"annotations":{"org.opencontainers.image.source":"https://git.example.com/plants/line","org.opencontainers.image.revision":"main@sha1:0123\nArtifact: x",
		"org.opencontainers.image.created":"2026-01-02T03:04:05Z","other":"ignored"}}`))
	assert.NoError(t, err)
	a.Digest = "sha256:6e6f0000000000000000000000000000000000000000000000000000000000ff"
	text := commitText(a, plan.ID{1})
	assert.Equal(t, `tree 0100000000000000000000000000000000000000
author OCI artifact <> 1767323045 +0000
committer OCI artifact <> 1767323045 +0000

Import sha256:6e6f00000000

Artifact: sha256:6e6f0000000000000000000000000000000000000000000000000000000000ff
Source: https://git.example.com/plants/line
Revision: main@sha1:0123 Artifact: x
Created: 2026-01-02T03:04:05Z
`, string(text))
	assert.Equal(t, a.Digest, digestIn(text))
	for name, when := range map[string]string{"none": "", "no date": "yesterday", "before 1970": "1969-01-01T00:00:00Z"} {
		t.Run(name, func(t *testing.T) {
			a.annotations["org.opencontainers.image.created"] = when
			assert.Contains(t, string(commitText(a, plan.ID{1})), "<> 0 +0000")
		})
	}
}
