// Command gateway simulates an Ignition 8.3 gateway on a data directory, for tests and demonstrations. README.md beside
// this file says what it does and how to make it fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/gateway/simulator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	simulator.Options
	tlsListen, tokenOut, caOut string
	seed, chart                bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.Data, "data", "", "data directory; created if missing")
	f.StringVar(&s.Listen, "listen", "127.0.0.1:8088", "address of the gateway's http port")
	f.StringVar(&s.tlsListen, "tls-listen", "", "address of the gateway's https port; empty for none")
	f.StringVar(&s.Admin, "admin", "127.0.0.1:9088", "address of the simulator's own interface")
	f.BoolVar(&s.seed, "seed", false, "fill the data directory if it is empty, as the image does")
	f.BoolVar(&s.chart, "seed-like-chart", false, "fill the data directory over existing files, as the chart does; implies -seed")
	f.StringVar(&s.tokenOut, "token-out", "", "file for the API token; an existing file sets the token")
	f.StringVar(&s.caOut, "ca-out", "", "file for the certificate of the https port (PEM)")
	f.StringVar(&s.Name, "name", "gateway", "the gateway's name")
	f.StringVar(&s.Version, "version", "8.3.8", "the gateway's version")
	f.StringVar(&s.Mode, "mode", "", "active deployment mode")
	f.StringVar(&s.Role, "role", "Independent", "Independent, Master or Backup")
	f.BoolVar(&s.Down, "down", false, "stay down until the admin interface starts the gateway")
	f.BoolVar(&s.Commissioning, "commissioning", false, "wait for the commissioning at the start")
	f.BoolVar(&s.ResetPermissions, "reset-permissions", false, "drop all grants at the first start")
	f.DurationVar(&s.ScanDelay, "scan-delay", 0, "how long a scan takes before it reads the tree")
	f.DurationVar(&s.ClockSkew, "clock-skew", 0, "added to the gateway's clock")
	f.DurationVar(&s.ProjectsTimer, "projects-timer", 5*time.Minute, "how often the gateway scans its projects by itself; negative for never")
	f.BoolVar(&s.ScanModule, "scan-module", false, "install the third-party project-scan module")
	f.BoolVar(&s.Strict, "strict", false, "refuse parameters and bodies on the scan routes")
	f.BoolVar(&s.NoWriteBack, "no-write-back", false, "never sign resource.json files again")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if s.tlsListen != "" {
		s.TLS = &simulator.TLSOptions{Listen: s.tlsListen}
	}
	switch {
	case s.chart:
		s.Seeding = simulator.SeedChart
	case !s.seed:
		s.Seeding = simulator.SeedNone
	}
	return s, nil
}

// run simulates a gateway until ctx is done. After the start, it prints the addresses to stdout as shell variables.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s.Log = slog.New(slog.NewTextHandler(stderr, nil))
	if s.tokenOut != "" {
		raw, err := os.ReadFile(s.tokenOut)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.Token = strings.TrimSpace(string(raw))
	}
	if s.Data != "" {
		if err := os.MkdirAll(s.Data, 0o755); err != nil {
			return err
		}
	}
	g, err := simulator.Start(s.Options)
	if err != nil {
		return err
	}
	err = writeFiles(g, s)
	if err == nil {
		fmt.Fprintf(stdout, "GATEWAY=%s\nGATEWAY_TLS=%s\nADMIN=%s\n", g.URL(), g.TLSURL(), g.AdminURL())
		<-ctx.Done()
	}
	return errors.Join(err, g.Close())
}

// writeFiles writes the certificate and the token to the files of the flags.
func writeFiles(g *simulator.Gateway, s settings) error {
	if s.caOut != "" {
		if err := os.WriteFile(s.caOut, g.CA(), 0o644); err != nil {
			return err
		}
	}
	if s.tokenOut == "" {
		return nil
	}
	return os.WriteFile(s.tokenOut, []byte(g.Token()), 0o600)
}
