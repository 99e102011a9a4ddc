package sync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// If files are written while no gateway is configured, a gateway configured later still gets a scan.
func TestLateGatewayAddressScans(t *testing.T) {
	b := newBench(t, simulator.Options{})
	gateway := b.conn.Gateway
	b.push(firstCommit()...)
	b.conn.Gateway = nil
	assert.Contains(t, b.synced().Message, "nothing was scanned or verified")
	assert.Nil(t, b.gw.Data.Loaded(db))
	b.conn.Gateway = gateway
	r := b.synced()
	assert.Len(t, r.Scans, 2)
	assert.NotNil(t, b.gw.Data.Loaded(db))
	b.gw.Requests.Reset()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "one scan only")
}

// A gateway that starts during staging gets no file without its lock, its scan and the check of its Designers.
func TestGatewayStartsDuringStaging(t *testing.T) {
	for _, state := range []simulator.State{simulator.Starting, simulator.Running} {
		t.Run(string(state), func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			b.push(firstCommit()...)
			b.synced()
			b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
			b.push(gitserver.Write(view, `{"one": 2}`))
			require.NoError(t, b.gw.SetState(simulator.Down))
			starts := true
			b.engine.Progress = func(step string, _, _ int) {
				if step == "stage" && starts {
					starts = false
					assert.NoError(t, b.gw.SetState(state))
				}
			}
			b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonWaitingForGateway)
			assert.False(t, starts)
			assert.Equal(t, `{"one": 1}`, b.read(view))

			require.NoError(t, b.gw.SetState(simulator.Running))
			_, err := b.gw.Designers.Open("anna", "line")
			require.NoError(t, err)
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
			assert.Equal(t, `{"one": 1}`, b.read(view))
		})
	}
}
