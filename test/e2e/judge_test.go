//go:build linux

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestWatcherFindsContradictions(t *testing.T) {
	good := func() *v1alpha1.GatewaySync {
		gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: "b"}
		gs.Status.GatewaysReady = "2/2"
		gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{
			{Name: "line", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: "b"},
			{Name: "line-1", SyncStatus: v1alpha1.GatewayStandby, SyncedCommit: "b"},
		}
		gs.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
		return gs
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		blamed string
	}{
		"nothing":                      {func(*v1alpha1.GatewaySync) {}, ""},
		"gateway at another commit":    {func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways[1].SyncedCommit = "a" }, "line-1 is Standby at a"},
		"gateway that is not verified": {func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewayApplied }, "line is Applied"},
		"fewer gateways than rows":     {func(gs *v1alpha1.GatewaySync) { gs.Status.GatewaysReady = "1/2" }, "with 1/2 gateways"},
		"future generation":            {func(gs *v1alpha1.GatewaySync) { gs.Status.Conditions[0].ObservedGeneration = 3 }, "generation 3"},
		"duplicate condition": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions = append(gs.Status.Conditions, gs.Status.Conditions[0])
		}, "two conditions Ready"},
		"stalled": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions = append(gs.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue})
		}, "Ready and Stalled"},
		"Ready False and Stalled": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Conditions[0].Status = metav1.ConditionFalse
			gs.Status.DiscoveredGateways[1].SyncedCommit = "a"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watcher{}
			gs := good()
			c.change(gs)
			w.judge(gs)
			if c.blamed == "" {
				assert.Empty(t, w.wrong)
			} else if assert.NotEmpty(t, w.wrong) {
				assert.Contains(t, w.wrong[0], c.blamed)
			}
		})
	}
}
