package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func TestExpand(t *testing.T) {
	commit := func(prefix string) string { return prefix + strings.Repeat("0", 40-len(prefix)) }
	gs := &v1alpha1.GatewaySync{}
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commit("8f98df3")}
	gs.Status.History = []v1alpha1.CommitRecord{{Ref: "main", Commit: commit("1f0c2d3a")}, {Ref: "main", Commit: commit("1f0c2d3b")}}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{SyncedCommit: commit("5c5c5c5"), GatewayDetails: v1alpha1.GatewayDetails{SyncHistory: []v1alpha1.SyncRecord{{Commit: commit("20261124")}}}}}
	for ref, want := range map[string]string{
		"main": "main", "v1.2.3": "v1.2.3", "abcdef": "abcdef", "refs/heads/deadbee": "refs/heads/deadbee",
		"8f98df3": commit("8f98df3"), "8F98DF30": commit("8f98df3"), "1f0c2d3b": commit("1f0c2d3b"), "5c5c5c5": commit("5c5c5c5"),
		"20261124": commit("20261124"), "20261125": "20261125", commit("ffff"): commit("ffff"),
	} {
		t.Run(ref, func(t *testing.T) {
			got, err := Expand(gs, ref)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	for ref, want := range map[string]string{
		"1f0c2d3": "1f0c2d3 is both " + commit("1f0c2d3a") + " and " + commit("1f0c2d3b"),
		"deadbee": "deadbee looks like the first digits of a commit, and the status has no commit that begins with them: write all 40 digits, or refs/heads/deadbee or refs/tags/deadbee",
	} {
		t.Run(ref, func(t *testing.T) {
			_, err := Expand(gs, ref)
			invalid := &InvalidError{}
			require.ErrorAs(t, err, &invalid)
			assert.ErrorContains(t, err, want)
		})
	}
}
