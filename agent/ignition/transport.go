package ignition

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"stoker.io/stoker/internal/httpclient"
)

// errBadCA reports an unusable CA bundle.
var errBadCA = errors.New("the CA bundle of the gateway (gateway.tlsConfig.caSecretRef) is invalid")

// newClient returns a client that reads the CA for each new connection, so that a rotated bundle takes effect
// without a restart. It ignores proxy settings, because a proxy would see the token, and a gateway is nearby.
func newClient(cfg TLS, host string) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return httpclient.Policy{
		Dial: dialer.DialContext,
		DialTLS: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conf, err := cfg.config(host)
			if err != nil {
				return nil, err
			}
			d := tls.Dialer{NetDialer: dialer, Config: conf}
			return d.DialContext(ctx, network, addr)
		},
		MaxConns: 4, KeepAlive: 30 * time.Second,
	}.Client()
}

func (t TLS) config(host string) (*tls.Config, error) {
	conf := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.ServerName != "" {
		conf.ServerName = t.ServerName
	}
	if t.CA == nil {
		return conf, nil
	}
	pem, err := t.CA()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCA, err)
	}
	if conf.RootCAs, err = httpclient.Roots(pem, false); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCA, err)
	}
	return conf, nil
}
