package ignition_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestPing(t *testing.T) {
	g := start(t, simulator.Options{ClockSkew: -48 * time.Hour})
	ping, err := client(t, g).Ping(t.Context())
	require.NoError(t, err)
	assert.True(t, ping.Running())
	assert.Equal(t, "RUNNING", ping.String())
	assert.WithinDuration(t, time.Now().Add(-48*time.Hour), ping.Date, time.Minute)
	for _, r := range g.Requests.List() {
		assert.Empty(t, r.Token, "the status page gets no token")
	}
}

func TestPingDuringCommissioning(t *testing.T) {
	g := start(t, simulator.Options{Commissioning: true})
	ping, err := client(t, g).Ping(t.Context())
	require.NoError(t, err)
	assert.False(t, ping.Running())
	assert.True(t, ping.Commissioning())
	assert.Equal(t, "RUNNING/COMMISSIONING", ping.String())
}

func TestPingFails(t *testing.T) {
	t.Run("gateway down", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.SetState(simulator.Down))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
		assert.ErrorContains(t, err, "cannot be reached")
	})
	t.Run("redirect to commissioning", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /StatusPing", Status: 302, Location: "/welcome"}))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonWaitingForCommissioning, err)
		assert.Zero(t, g.Requests.Count("GET /welcome"))
	})
	t.Run("canceled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client(t, start(t, simulator.Options{})).Ping(ctx)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

func TestPingOfStoppedGateway(t *testing.T) {
	for state, want := range map[simulator.State]string{simulator.Starting: "STARTING", simulator.Faulted: "FAULTED"} {
		t.Run(string(state), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.SetState(state))
			ping, err := client(t, g).Ping(t.Context())
			require.NoError(t, err)
			assert.False(t, ping.Running())
			assert.Equal(t, want, ping.State)
		})
	}
}
