package repo_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/ociregistry"
)

// The message says whether all tags were compared.
func TestRegistrySearch(t *testing.T) {
	for tags, says := range map[int]string{1: "no tag of ", 1001: "none of the 1000 tags of "} {
		t.Run(fmt.Sprint(tags), func(t *testing.T) {
			server := ociregistry.Start(t)
			digest := server.Push("", ociregistry.Files(t, line), nil)
			for i := range tags { // setup: the tags
				server.Tag(fmt.Sprintf("1.%04d", i), digest)
			}
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
			_, err := a.store.Fetch(t.Context(), a.remote, plan.ID{1}, "")
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
			assert.ErrorContains(t, err, says)
		})
	}
}
