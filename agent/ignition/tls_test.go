package ignition_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestTrustedGatewayOverTLS(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	token, err := g.Administrator.IssueToken(simulator.TokenSpec{Name: "tls", Levels: []string{"Authenticated/ApiKeys/Stoker"}, Secure: true})
	require.NoError(t, err)
	for name, trust := range map[string]ignition.TLS{
		"authority and name": {CA: func() ([]byte, error) { return g.CA(), nil }, ServerName: "gateway.example"},
		"explicit skip":      {InsecureSkipVerify: true},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := client(t, g, withKey(token), overTLS(g, trust)).Info(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "gateway", info.Name)
		})
	}
}

func TestUntrustedGatewayGetsNoToken(t *testing.T) {
	ca := func(g *simulator.Gateway) func() ([]byte, error) {
		return func() ([]byte, error) { return g.CA(), nil }
	}
	for name, c := range map[string]struct {
		opts simulator.TLSOptions
		tls  func(*simulator.Gateway) ignition.TLS
		says string
	}{
		"unknown authority": {tls: func(*simulator.Gateway) ignition.TLS { return ignition.TLS{ServerName: "gateway.example"} }, says: "gateway.tlsConfig.caSecretRef"},
		"wrong name":        {tls: func(g *simulator.Gateway) ignition.TLS { return ignition.TLS{CA: ca(g)} }, says: "gateway.example and not for 127.0.0.1: set spec.gateway.tlsConfig.serverName"},
		"expired": {opts: simulator.TLSOptions{NotAfter: time.Now().Add(-24 * time.Hour)}, says: "renew it",
			tls: func(g *simulator.Gateway) ignition.TLS {
				return ignition.TLS{CA: ca(g), ServerName: "gateway.example"}
			}},
		"not PEM": {tls: func(*simulator.Gateway) ignition.TLS {
			return ignition.TLS{CA: func() ([]byte, error) { return []byte("none"), nil }}
		}, says: "no PEM certificate"},
		"unreadable CA": {tls: func(*simulator.Gateway) ignition.TLS {
			return ignition.TLS{CA: func() ([]byte, error) { return nil, errors.New("no such file") }}
		}, says: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{TLS: &c.opts})
			_, err := client(t, g, overTLS(g, c.tls(g))).Scan(t.Context(), ignition.Projects)
			requireReason(t, v1alpha1.ReasonGatewayUntrusted, err)
			assert.ErrorContains(t, err, "is not trusted")
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, g.Requests.List())
		})
	}
}

func TestTLSToPlainPortError(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g, func(c *ignition.Config) { c.URL = strings.Replace(g.URL(), "http:", "https:", 1) })
	_, err := c.Info(t.Context())
	requireReason(t, v1alpha1.ReasonGatewayUntrusted, err)
	assert.ErrorContains(t, err, "does not use TLS")
}

func TestPlainHTTPToTLSPortError(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	c := client(t, g, func(c *ignition.Config) { c.URL = strings.Replace(g.TLSURL(), "https:", "http:", 1) })
	_, err := c.Info(t.Context())
	requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
	assert.ErrorContains(t, err, "set spec.gateway.tls")
}

func TestRotatedAuthority(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	var good atomic.Bool
	c := client(t, g, overTLS(g, ignition.TLS{ServerName: "gateway.example", CA: func() ([]byte, error) {
		if good.Load() {
			return g.CA(), nil
		}
		return nil, errors.New("not there yet")
	}}))
	_, err := c.Info(t.Context())
	require.Error(t, err)
	good.Store(true)
	_, err = c.Info(t.Context())
	require.NoError(t, err)
}

func overTLS(g *simulator.Gateway, trust ignition.TLS) func(*ignition.Config) {
	return func(c *ignition.Config) { c.URL, c.TLS = g.TLSURL(), trust }
}
