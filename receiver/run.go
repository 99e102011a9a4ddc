package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"time"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/server"
)

const (
	// readInterval is how often the certificate and the secrets are read. The kubelet takes up to a minute to update a mounted
	// Secret.
	readInterval = 10 * time.Second
	// maxConnections limits open connections, and maxAddressConnections those of one address. All connections through an
	// ingress have the same address.
	maxConnections, maxAddressConnections = 384, 256
	// bodyTimeout and idleTimeout bound an inactive connection, drainTimeout the pending answers at shutdown.
	bodyTimeout, idleTimeout, drainTimeout = 10 * time.Second, 20 * time.Second, 15 * time.Second
)

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == commandCheck {
		return daemon.Exit(check(ctx, args[1:], stdout, stderr), "receiver "+commandCheck, stderr)
	}
	s, err := parse(args, env, stderr)
	switch {
	case err != nil:
	case s.Version:
		fmt.Fprintln(stdout, version)
	default:
		err = serveUntilDone(ctx, s, daemon.Log(stderr, s.LogFormat, s.LogLevel))
	}
	return daemon.Exit(err, "receiver", stderr)
}

// serveUntilDone creates the parts and runs them until ctx is done. Then it stops the servers and carries out the accepted requests.
func serveUntilDone(ctx context.Context, s settings, log *slog.Logger) error {
	reg := daemon.Registry()
	measured := metrics.NewReceiver(reg, version)
	secrets, err := credential.ReadFiles(s.InstallSecretFile, readInterval, log)
	if err != nil {
		return fmt.Errorf("--install-secret-file: %w", err)
	}
	clients, err := kube.Connect(s.Kubeconfig, "stoker-receiver/"+version)
	if err != nil {
		return err
	}
	srv, err := server.New(server.Config{Clients: clients, Namespace: s.Namespace, Watch: s.WatchNamespace, Selector: s.Selector,
		Install: secrets.Values, Metrics: measured, Log: log})
	if err != nil {
		return err
	}
	defer srv.Close()
	cert := keypair.NewMounted(s.TLSDir, readInterval, log, measured.SetCertificateExpiry)
	ready := func() bool { return srv.Ready() && (s.TLSDir == "" || cert.Ready()) && ctx.Err() == nil }

	bounds := serve.Bounds{MaxBody: limit.MaxStream + 1, Body: bodyTimeout, Idle: idleTimeout, Drain: drainTimeout, Log: log,
		Connections: limit.Limits{MaxTotal: maxConnections, MaxEach: maxAddressConnections, Networks: true, Opened: measured.Connections,
			Closed: func() { measured.ConnectionClosed("address") }}}
	loops := []func(context.Context) error{srv.Run, secrets.Run}
	if s.TLSDir != "" {
		bounds.TLS = &tls.Config{GetCertificate: cert.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
		loops = append(loops, cert.Run)
	}
	return daemon.Run(ctx, daemon.Config{
		Settings: s.Settings, Namespace: s.Namespace, Metrics: reg, Log: log,
		Ready: ready, Waits: "waiting for the list of GatewaySyncs or for the certificate, or stopping",
		Endpoints: []daemon.Endpoint{{Flag: "webhook-addr", Listen: func(ctx context.Context) (*serve.Server, error) {
			return serve.ListenBounded(ctx, s.WebhookAddr, srv.Routes(), bounds)
		}}},
		Loops: loops,
	})
}
