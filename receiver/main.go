// Command receiver accepts webhooks of git hosts, Argo CD, Kargo and scripts, and makes the same requests to GatewaySyncs and ConfigSyncs
// as the command line.
//
// docs/reference/receiver.md is the reference of its flags, routes, rights and metrics.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/server"
)

const (
	// readInterval is how often the files with the certificate and with install-wide secrets are read. The kubelet takes up to a minute to
	// update a mounted Secret.
	readInterval = 10 * time.Second
	// maxConnections limits open connections, and maxAddressConnections those of one address. All connections through an
	// ingress have the same address.
	maxConnections, maxAddressConnections = 384, 256
	// bodyTimeout is how long a request may take to arrive, idleTimeout how long a connection may stay open without one, and drainTimeout
	// how long pending answers may take at shutdown.
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

// checkTimeout is how long the command check waits for a new installation, checkInterval the pause between its attempts, and
// checkRequestTimeout the limit of each. maxAnswer is how many bytes of an answer it reads.
const (
	checkTimeout, checkInterval, checkRequestTimeout = time.Minute, 2 * time.Second, 10 * time.Second
	commandCheck                                     = "check"
	maxAnswer                                        = 64 << 10
)

// check is the command check, which `helm test` runs. It verifies that a receiver answers at an address and rejects a request
// without a secret.
func check(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("receiver "+commandCheck, flag.ContinueOnError)
	f.SetOutput(stderr)
	address := f.String("url", "", "`address` of the receiver, such as http://stoker-receiver.stoker-system.svc:9444")
	authority := f.String("tls-ca-file", "", "a `file` with the certificates that an https address is checked with; if it does not exist, those of the system")
	if err := daemon.Parse(f, args); err != nil {
		return err
	}
	u, err := url.Parse(*address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || f.NArg() > 0 {
		fmt.Fprintf(stderr, "receiver %s: --url is required: http:// or https:// and a host; see receiver %s --help\n", commandCheck, commandCheck)
		return daemon.ErrUsage
	}
	client, err := checkClient(*authority)
	if err == nil {
		err = checkUntil(ctx, client, u.JoinPath("webhook", "stoker-check", "stoker-check").String())
	}
	if err == nil {
		fmt.Fprintf(stdout, "%s: a receiver answers, and rejects a request without a secret\n", u.Redacted())
	}
	return err
}

func checkClient(authority string) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if authority != "" {
		pem, err := file.Read(authority, 1<<20)
		if errors.Is(err, fs.ErrNotExist) { // a certificate from a public authority comes without this file
			return newClient(config), nil
		}
		if err != nil {
			return nil, fmt.Errorf("--tls-ca-file: %w", err)
		}
		if config.RootCAs, err = httpclient.Roots(pem, false); err != nil {
			return nil, fmt.Errorf("--tls-ca-file: %s contains no certificate", authority)
		}
	}
	return newClient(config), nil
}

func newClient(config *tls.Config) *http.Client {
	return httpclient.Policy{Timeout: checkRequestTimeout, TLS: config}.Client()
}

func checkUntil(ctx context.Context, client *http.Client, address string) error {
	for end := time.Now().Add(checkTimeout); ; {
		err := checkOnce(ctx, client, address)
		if err == nil || time.Now().After(end) {
			return err
		}
		if !backoff.Wait(ctx, checkInterval) {
			return err
		}
	}
}

func checkOnce(ctx context.Context, client *http.Client, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	var answer struct{ Result string }
	if res.StatusCode != http.StatusUnauthorized || json.Unmarshal(body, &answer) != nil || answer.Result != "refused" {
		return fmt.Errorf("%s answers %s, unlike a receiver, which rejects a request without a secret: %.200q", address, res.Status, body)
	}
	return nil
}

// settings are the flags and the environment of the receiver. docs/reference/receiver.md lists them, and a test compares both.
type settings struct {
	daemon.Settings

	WebhookAddr       string
	TLSDir            string
	InstallSecretFile daemon.Texts

	// Namespace is the receiver's own, from POD_NAMESPACE.
	Namespace string
}

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := daemon.Flags("receiver", out, "receiver turns HTTP calls of git hosts, Argo CD, Kargo and scripts into requests to GatewaySyncs and ConfigSyncs.\n\n  receiver [flags]\n  receiver check --url URL",
		"Environment: POD_NAMESPACE. Exit codes: 0 done, 1 failed, 2 usage.")
	s.Register(f)
	f.StringVar(&s.WebhookAddr, "webhook-addr", ":9444", "`address` of /webhook and /status")
	f.StringVar(&s.TLSDir, "tls-dir", "", "`directory` with tls.crt and tls.key, read again when they change; without it plain HTTP is served")
	f.Var(&s.InstallSecretFile, "install-secret-file", "a `file` with a secret for hints to all GatewaySyncs and ConfigSyncs, one value per line, read again when it changes (repeatable)")
	return f
}

// parse parses the command line and the environment. The errors are those of daemon.Parse and daemon.Explain.
func parse(args []string, env func(string) string, out io.Writer) (settings, error) {
	var s settings
	f := s.flags(out)
	if err := daemon.Parse(f, args); err != nil || s.Version {
		return s, err
	}
	problems := s.Problems()
	if s.Namespace = env("POD_NAMESPACE"); s.Namespace == "" {
		problems = append(problems, errors.New("POD_NAMESPACE is required: the receiver's own namespace"))
	}
	err := daemon.Explain(f, problems...)
	return s, err
}

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // request bodies become garbage at once; keep the heap small
	}
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
