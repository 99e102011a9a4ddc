package simulator

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStoppedGatewayKeepsPort(t *testing.T) {
	g, err := Start(Options{Data: t.TempDir()})
	require.NoError(t, err)
	defer func() { assert.NoError(t, g.Close()) }()
	addr := strings.TrimPrefix(g.URL(), "http://")
	require.NoError(t, g.SetState(Down))
	_, err = net.Dial("tcp", addr)
	assert.True(t, errors.Is(err, syscall.ECONNREFUSED), "%v", err)
	for range 300 { // other listeners and connections must get other ports
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		assert.NotEqual(t, addr, l.Addr().String())
		defer func() { assert.NoError(t, l.Close()) }()
	}
	require.NoError(t, g.SetState(Running))
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	assert.NoError(t, c.Close())
}
