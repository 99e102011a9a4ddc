package sync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/test/gateway/simulator"
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
