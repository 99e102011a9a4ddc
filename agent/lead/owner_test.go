package lead

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// A pod of the same name may have been there before, with another volume: what it left says nothing about this one.
func TestAReportCountsForThePodThatOwnsItOnly(t *testing.T) {
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		ready  string
	}{
		"its own pod":          {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"beside another owner": {[]metav1.OwnerReference{{Kind: "Fleet", UID: "f"}, {Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"an earlier pod":       {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-earlier"}}, "False/Progressing"},
		"nobody":               {nil, "False/Progressing"},
		"something else":       {[]metav1.OwnerReference{{Kind: "Fleet", UID: "uid-gw-0"}}, "False/Progressing"},
		"a pod without a UID":  {[]metav1.OwnerReference{{Kind: "Pod"}}, "False/Progressing"},
	} {
		s := newScene(t, 1)
		s.Reports[0].OwnerReferences = c.owners
		st := s.write()
		assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady), name)
		if c.ready != "True/Synced" {
			assert.Equal(t, "its agent has not reported yet", st.DiscoveredGateways[0].Message, name)
			assert.Empty(t, st.DiscoveredGateways[0].SyncedCommit, name)
		}
	}
}
