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
	"net/http"
	"net/url"
	"time"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/httpclient"
)

// checkTimeout is how long the command check waits for a new installation.
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
		if errors.Is(err, fs.ErrNotExist) { // the Secret of a certificate from a public authority has none
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
