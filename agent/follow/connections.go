package follow

import (
	"errors"
	"net"
	"strconv"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/storage"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// connections are the connections of a sync, made for one GatewaySync.
type connections struct {
	sync.Connections
	madeFor *v1alpha1.GatewaySync // nil before the first
}

// update makes new connections if gs is not the GatewaySync of the last call.
func (c *connections) update(config *Config, gs *v1alpha1.GatewaySync) error {
	if c.madeFor == gs {
		return nil
	}
	gateway := connect.Gateway{URL: gatewayURL(&gs.Spec.Gateway, config.Port, config.TLS), Key: config.Key}
	made, err := connect.New(&gs.Spec, gateway, config.Secrets, config.Remote, config.Log)
	if err != nil {
		return err
	}
	if made.Storage, err = storage.New(&gs.Spec, config.Secrets); err != nil {
		return errors.Join(err, made.Remote.Close())
	}
	if c.madeFor != nil {
		_ = c.Remote.Close() // only closes connections
	}
	c.madeFor, c.Connections = gs, made
	return nil
}

// gatewayURL returns the address of the gateway's web server, which is in the same pod. port and tls apply if the spec sets no
// port.
func gatewayURL(g *v1alpha1.GatewaySpec, port int32, tls bool) string {
	tls = g.TLS || g.Port == nil && tls
	if g.Port != nil || port == 0 {
		port = g.EffectivePort()
	}
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
}
