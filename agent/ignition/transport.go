package ignition

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// errBadCA reports an unusable CA bundle.
var errBadCA = errors.New("the CA bundle of the gateway (gateway.tlsConfig.caSecretRef) is invalid")

// newTransport returns a transport that reads the CA for each new connection, so that a rotated bundle takes effect
// without a restart. It ignores proxy settings, because a proxy would see the token, and a gateway is nearby.
func newTransport(cfg TLS, host string) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: dialer.DialContext,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conf, err := cfg.config(host)
			if err != nil {
				return nil, err
			}
			d := tls.Dialer{NetDialer: dialer, Config: conf}
			return d.DialContext(ctx, network, addr)
		},
		MaxIdleConns:           2,
		MaxConnsPerHost:        4,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
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
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: it contains no PEM certificate", errBadCA)
	}
	return conf, nil
}
