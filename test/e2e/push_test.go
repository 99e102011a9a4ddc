//go:build linux

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func threeGatewaysFollowAPush(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways()
	p.synced(p.head(), 3)
	for _, pod := range p.pods() {
		assertGated(t, &pod)
	}
	second := p.push("second")
	gs := p.synced(second, 3)
	for _, g := range gs.Status.DiscoveredGateways {
		assert.Contains(t, []string{"line", "line-1", "line-2"}, g.Name)
	}
}

// assertGated checks that the gateway's container started after the agent had let it.
func assertGated(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var agent, gateway *corev1.ContainerStateRunning
	for _, s := range pod.Status.InitContainerStatuses {
		if s.Name == "stoker-agent" {
			agent = s.State.Running
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == "gateway" {
			gateway = s.State.Running
		}
	}
	if assert.NotNil(t, agent, pod.Name) && assert.NotNil(t, gateway, pod.Name) {
		assert.False(t, gateway.StartedAt.Before(&agent.StartedAt), "%s: the gateway started before its agent", pod.Name)
	}
}
