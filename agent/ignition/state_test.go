package ignition_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestPingGivesStateAndTheGatewaysClock(t *testing.T) {
	g := start(t, simulator.Options{ClockSkew: -48 * time.Hour})
	ping, err := client(t, g).Ping(t.Context())
	require.NoError(t, err)
	assert.True(t, ping.Running())
	assert.Equal(t, "RUNNING", ping.String())
	assert.WithinDuration(t, time.Now().Add(-48*time.Hour), ping.Date, time.Minute)
	for _, r := range g.Requests() {
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

func TestWaitRunningReturns(t *testing.T) {
	for _, before := range []simulator.State{simulator.Down, simulator.Starting, simulator.Commissioning, simulator.Faulted} {
		t.Run("after "+string(before), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.SetState(before))
			said := make(records, 1)
			c := client(t, g, func(c *ignition.Config) { c.Log = slog.New(said) })
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.WaitRunning(ctx) }()
			assert.Equal(t, "waiting for the gateway", <-said)
			select {
			case err := <-done:
				require.Fail(t, "returned before the gateway runs", "%v", err)
			default:
			}
			require.NoError(t, g.SetState(simulator.Running))
			require.NoError(t, <-done)
		})
	}
}

var errEnough = errors.New("waited long enough")

// waitUntilSeen waits for a gateway that is not running until the client has logged it, and returns the error of WaitRunning.
func waitUntilSeen(t *testing.T, g *simulator.Gateway) error {
	t.Helper()
	said := make(records, 1)
	c := client(t, g, func(c *ignition.Config) { c.Log = slog.New(said) })
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- c.WaitRunning(ctx) }()
	select {
	case <-said:
		cancel(errEnough)
		return <-done
	case err := <-done:
		return err
	}
}

func TestWaitRunningReportsLastState(t *testing.T) {
	for _, c := range []struct {
		state simulator.State
		want  v1alpha1.Reason
		says  string
	}{
		{simulator.Down, v1alpha1.ReasonGatewayUnreachable, "cannot be reached"},
		{simulator.Starting, v1alpha1.ReasonWaitingForGateway, "STARTING"},
		{simulator.Faulted, v1alpha1.ReasonWaitingForGateway, "FAULTED"},
		{simulator.Commissioning, v1alpha1.ReasonWaitingForCommissioning, "RUNNING/COMMISSIONING"},
	} {
		t.Run(string(c.state), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.SetState(c.state))
			err := waitUntilSeen(t, g)
			requireReason(t, c.want, err)
			assert.ErrorContains(t, err, c.says)
			assert.ErrorIs(t, err, errEnough)
		})
	}
}

func TestWaitRunningSeesCommissioningRedirect(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Fault(simulator.Fault{Route: "GET /StatusPing", Status: 302, Location: "/welcome"}))
	requireReason(t, v1alpha1.ReasonWaitingForCommissioning, waitUntilSeen(t, g))
	assert.Zero(t, g.Count("GET /welcome"))
}

func TestWaitRunningWithCanceledContext(t *testing.T) {
	g := start(t, simulator.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, client(t, g).WaitRunning(ctx), context.Canceled)
}
