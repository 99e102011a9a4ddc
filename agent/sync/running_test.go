package sync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

const asked = "GET /StatusPing"

func TestVolumeAlreadyAtTarget(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Start = "one"
	b.push(firstCommit()...)
	b.synced()
	b.gw.Requests.Reset()
	b.synced()
	b.again()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "a restarted agent sends no request to a gateway that ran")

	require.NoError(t, b.gw.SetState(simulator.Down))
	b.synced()             // the gateway ran since this start; if it stops later, its own probes say so
	b.target.Start = "two" // the pod was restarted
	for range 2 {
		r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Equal(t, b.target.Commit, r.Commit)
		assert.Contains(t, r.Message, "has not run since its pod started")
		b.again() // the next agent of this pod waits, too
	}
	require.NoError(t, b.gw.SetState(simulator.Starting))
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.NoError(t, b.gw.SetState(simulator.Commissioning))
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForCommissioning)
	require.NoError(t, b.gw.SetState(simulator.Running))
	// sequence: the answers of a web server that is starting
	for _, f := range []simulator.Fault{{Status: 500}, {Status: 404}, {Reset: true}} {
		f.Route, f.Times = asked, 1
		require.NoError(t, b.gw.Faults.Add(f))
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	}
	b.gw.Requests.Reset()
	r := b.synced()
	assert.Empty(t, r.Scans, "the gateway read the files when it started")
	assert.Equal(t, 1, b.gw.Requests.Count(asked))
	assert.Len(t, b.gw.Requests.List(), 1)
	b.synced()
	b.again()
	b.synced()
	assert.Len(t, b.gw.Requests.List(), 1)
}

func TestSyncedByFilesWithoutGateway(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.target.Start = "two" // the pod was restarted
	b.conn.HasAPIToken = false
	b.synced()
	b.conn.Gateway = nil
	b.synced()
}

func TestRestartOfGateway81(t *testing.T) {
	b := newBench(t, simulator.Options{Version: "8.1.44", ScanModule: true})
	b.push(firstCommit()...)
	b.synced()
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.target.Start = "two" // the pod was restarted
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.gw.Requests.Reset()
	b.synced()
	assert.Len(t, b.gw.Requests.List(), 1)
}

func TestRestartOfStandby(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	require.NoError(t, p.backup.gw.SetState(simulator.Down))
	p.backup.target.Start = "two"
	p.backup.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.NoError(t, p.backup.gw.SetState(simulator.Running))
	p.backup.standby()
}

func TestAppliedBeforeStart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.target.Start, b.target.BeforeStart = "two", true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.synced()
}
