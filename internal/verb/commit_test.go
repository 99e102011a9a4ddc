package verb

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestAtCommit(t *testing.T) {
	at := func(commit string, change func(*v1alpha1.GatewaySync)) Verdict {
		gs := plant("main")
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2", v1alpha1.AnnotationRequestedCommit: commitA,
			v1alpha1.AnnotationRequestedBy: "kargo", v1alpha1.AnnotationRequestedFor: "stage prod"}
		change(gs)
		gs.Status.ObservedGeneration, gs.Status.ConfirmedAt, gs.Status.Target = 1, &metav1.Time{Time: noon}, &v1alpha1.TargetStatus{Ref: desired(t, gs).Ref, Commit: commitA}
		gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw-0", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commitA}}
		return AtCommit(gs, Judge(gs, "", Evidence{Now: noon}), commit)
	}
	as := func(*v1alpha1.GatewaySync) {}
	loose := func(gs *v1alpha1.GatewaySync) { delete(gs.Annotations, v1alpha1.AnnotationRequestedCommit) }
	fixed := func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedRef] = commitA; loose(gs) }
	spec := func(gs *v1alpha1.GatewaySync) { gs.Annotations = nil }
	for name, change := range map[string]func(*v1alpha1.GatewaySync){"requested": as, "a ref alone": loose, "a commit": fixed, "the spec": spec} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, Succeeded, at("", change).Phase)
			assert.Equal(t, Succeeded, at(commitA, change).Phase)
			assert.Equal(t, Overtaken, at(commitB, change).Phase)
		})
	}
	assert.Equal(t, "the gateways are to run v2 at aaaaaaa (asked for by kargo for stage prod) and no longer bbbbbbb", at(commitB, as).Message)
}

// A status written before the request for a commit says nothing about that commit.
func TestAStatusOfAnotherCommitThanTheRequestedOneIsOfThePast(t *testing.T) {
	gs := plant("main")
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2"}
	gs.Status.ObservedGeneration, gs.Status.ConfirmedAt, gs.Status.Target = 1, &metav1.Time{Time: noon}, &v1alpha1.TargetStatus{Ref: "v2", Commit: commitA}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw-0", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commitA}}
	assert.Equal(t, Succeeded, Judge(gs, "", Evidence{Now: noon}).Phase)
	gs.Annotations[v1alpha1.AnnotationRequestedCommit] = commitB
	assert.Equal(t, Progressing, Judge(gs, "", Evidence{Now: noon}).Phase)
}
