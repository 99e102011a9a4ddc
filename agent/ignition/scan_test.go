package ignition_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestScan(t *testing.T) {
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour} {
		t.Run("clock off by "+skew.String(), func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir, Strict: true, ScanDelay: 20 * time.Millisecond, ClockSkew: skew})
			put(t, dir, "projects/P/project.json", projectJSON)
			require.Nil(t, g.Data.Loaded("projects/P"))
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
			assert.Equal(t, 1, result.Posts)
			assert.False(t, result.Status.Active)
			assert.WithinDuration(t, time.Now().Add(skew), result.Status.Last, time.Minute)
			assert.Equal(t, 1, g.Requests.Count(postProjects))
			assert.Zero(t, g.Requests.Count("POST /data/api/v1/scan/config"))
			assert.Empty(t, g.Requests.Violations())
		})
	}
}

func TestScanOfConfig(t *testing.T) {
	g := start(t, simulator.Options{})
	before := g.Scans.Completed("projects")
	_, err := client(t, g).Scan(t.Context(), ignition.ConfigScan)
	require.NoError(t, err)
	assert.Equal(t, 2, g.Scans.Completed("config"))
	assert.Equal(t, before, g.Scans.Completed("projects"))
}

func TestScanRetry(t *testing.T) {
	reset := simulator.Fault{Route: postProjects, Reset: true, Times: 2}
	lost := simulator.Fault{Route: postProjects, Reset: true, Times: 2, After: true}
	for name, fail := range map[string]func(*simulator.Gateway) error{
		"scan without a result": func(g *simulator.Gateway) error {
			return g.Scans.Fault("projects", simulator.ScanFault{Fails: 2, Delay: time.Millisecond})
		},
		"server error": func(g *simulator.Gateway) error {
			return g.Faults.Add(simulator.Fault{Route: postProjects, Status: 500, Times: 2})
		},
		"starting": func(g *simulator.Gateway) error {
			return g.Faults.Add(simulator.Fault{Route: getProjects, Status: 503, Times: 2})
		},
		"reset":       func(g *simulator.Gateway) error { return g.Faults.Add(reset) },
		"lost answer": func(g *simulator.Gateway) error { return g.Faults.Add(lost) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir})
			require.NoError(t, fail(g))
			put(t, dir, "projects/P/project.json", projectJSON)
			_, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
		})
	}
}

func TestScanRetryLimit(t *testing.T) {
	for name, fail := range map[string]func(*simulator.Gateway) error{
		"scan without a result": func(g *simulator.Gateway) error {
			return g.Scans.Fault("projects", simulator.ScanFault{Fails: 100})
		},
		"server error": func(g *simulator.Gateway) error {
			return g.Faults.Add(simulator.Fault{Route: postProjects, Status: 500})
		},
		"reset": func(g *simulator.Gateway) error {
			return g.Faults.Add(simulator.Fault{Route: postProjects, Reset: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, fail(g))
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			requireReason(t, v1alpha1.ReasonScanFailed, err)
			assert.Equal(t, 4, result.Posts)
			assert.Equal(t, 4, g.Requests.Count(postProjects))
		})
	}
}

func TestEndlessScanPostsOnce(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	c := client(t, g, func(c *ignition.Config) { c.ScanTimeout = 60 * time.Millisecond })
	_, err := c.Scan(t.Context(), ignition.Projects)
	requireReason(t, v1alpha1.ReasonScanFailed, err)
	assert.ErrorContains(t, err, "did not end in time")
	assert.Equal(t, 1, g.Requests.Count(postProjects))
}

func TestScanSurvivesPollErrors(t *testing.T) {
	for name, f := range map[string]simulator.Fault{
		"server error": {Status: 500}, "starting": {Status: 503}, "reset": {Reset: true}, "not JSON": {Status: 200, Body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: getProjects, Status: 200, Times: 1, // the status request before the POST
				Body: `{"scanActive":false,"lastScanTimestamp":1,"lastScanDuration":0}`}))
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{Delay: 5 * time.Millisecond}))
			f.Route, f.Times = getProjects, 3
			require.NoError(t, g.Faults.Add(f))
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.Equal(t, 1, result.Posts)
		})
	}
}

// A scan in progress may have read the tree before the latest writes, so the client requests another one.
func TestScanDuringAnotherScan(t *testing.T) {
	for _, coalesce := range []bool{false, true} {
		t.Run(fmt.Sprintf("coalesces %t", coalesce), func(t *testing.T) {
			g := start(t, simulator.Options{Unknowns: simulator.Unknowns{CoalescePosts: coalesce}})
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
			other := client(t, g)
			done := make(chan error, 2)
			go func() {
				_, err := other.Scan(t.Context(), ignition.Projects)
				done <- err
			}()
			posted := func(n int) bool {
				return assert.Eventually(t, func() bool { return g.Requests.Count(postProjects) == n }, bound, time.Millisecond)
			}
			require.True(t, posted(1))
			require.Eventually(t, func() bool { // the simulator counts a request before its scan begins
				status, err := other.ScanStatus(t.Context(), ignition.Projects)
				return err == nil && status.Active
			}, bound, time.Millisecond)
			go func() { // ends the current scan after the second POST
				posted(2)
				done <- g.Scans.Fault("projects", simulator.ScanFault{})
			}()
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.Equal(t, 2, result.Posts)
			require.NoError(t, <-done)
			require.NoError(t, <-done)
		})
	}
}

func TestRestartDuringScan(t *testing.T) {
	for name, unknown := range map[string]simulator.Unknowns{
		"start counts as scan": {}, "scans forgotten": {ForgetScans: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir, Unknowns: unknown})
			put(t, dir, "projects/P/project.json", projectJSON)
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
			done := make(chan error, 1)
			c := client(t, g, func(c *ignition.Config) { c.PollInterval = 100 * time.Millisecond }) // a restart takes longer on a busy machine
			go func() {
				_, err := c.Scan(t.Context(), ignition.Projects)
				done <- err
			}()
			require.Eventually(t, func() bool { return g.Requests.Count(postProjects) == 1 }, bound, time.Millisecond)
			require.NoError(t, g.Restart(10*time.Millisecond))
			require.NoError(t, <-done)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
		})
	}
}

func TestScanOfUnreachableGateway(t *testing.T) {
	for state, want := range map[simulator.State]v1alpha1.Reason{
		simulator.Down:          v1alpha1.ReasonGatewayUnreachable,
		simulator.Starting:      v1alpha1.ReasonWaitingForGateway,
		simulator.Commissioning: v1alpha1.ReasonWaitingForCommissioning,
	} {
		t.Run(string(state), func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.SetState(state))
			_, err := client(t, g).Scan(t.Context(), ignition.Projects)
			requireReason(t, want, err)
		})
	}
}

func TestCanceledScanError(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	stopped := errors.New("the agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	c := client(t, g)
	go func() {
		_, err := c.Scan(ctx, ignition.Projects)
		done <- err
	}()
	require.Eventually(t, func() bool { return g.Requests.Count(postProjects) == 1 }, bound, time.Millisecond)
	cancel(stopped)
	assert.ErrorIs(t, <-done, stopped)
}
