// Package daemon holds what the long-running binaries share: command lines, exit codes, logging, and the health and metrics
// servers. The injector and the receiver use all of it. The agent, which also works without an API server, and the long-running
// commands of stoker use single parts.
//
//	s, err := parse(args, env, stderr) // by Flags, Parse and Explain
//	if err == nil {
//		err = work(ctx, s, daemon.Log(stderr, s.LogFormat, s.LogLevel)) // work calls Run
//	}
//	return daemon.Exit(err, "receiver", stderr)
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"stoker.io/stoker/internal/serve"
)

// Endpoint is a server. Flag is the name of the flag that holds its address; Listen opens it there.
type Endpoint struct {
	Flag   string
	Listen func(context.Context) (*serve.Server, error)
}

// Config describes a binary to Run.
type Config struct {
	Settings Settings
	// Namespace is the namespace of the binary. It is only logged.
	Namespace string
	// Endpoints are the servers in addition to those of --health-addr and --metrics-addr.
	Endpoints []Endpoint
	// Ready reports whether the binary accepts requests. Until then, /readyz answers Waits.
	Ready func() bool
	Waits string
	// Loops run beside the servers until their context ends.
	Loops   []func(context.Context) error
	Metrics *prometheus.Registry
	Log     *slog.Logger
}

// Run opens the servers, then serves and runs the loops until ctx is done or one of them fails. A failure stops the others. Run
// returns after all of them have ended. If a server cannot be opened, the error names its flag. The loops, and client-go in them, find the
// log in their context by klog.FromContext.
func Run(ctx context.Context, c Config) error {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(c.Log.Handler())))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range append(c.Endpoints,
		plain("health-addr", c.Settings.HealthAddr, Health(c.Ready, c.Waits)), plain("metrics-addr", c.Settings.MetricsAddr, Metrics(c.Metrics))) {
		srv, err := e.Listen(ctx)
		if err != nil {
			stop()
			return errors.Join(fmt.Errorf("--%s: %w", e.Flag, err), group.Wait())
		}
		c.Log.Info("listening", "for", e.Flag, "address", srv.Addr(), "namespace", c.Namespace)
		group.Go(func() error { return srv.Run(ctx) })
	}
	for _, loop := range c.Loops {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}

func plain(name, addr string, h http.Handler) Endpoint {
	return Endpoint{Flag: name, Listen: func(ctx context.Context) (*serve.Server, error) { return serve.Listen(ctx, addr, h) }}
}

// Health serves /healthz, which always succeeds, and /readyz, which answers 503 with the text waits until ready returns true.
func Health(ready func() bool, waits string) *serve.Mux {
	return serve.NewMux(map[string]http.HandlerFunc{
		"GET /healthz": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") },
		"GET /readyz": func(w http.ResponseWriter, _ *http.Request) {
			if !ready() {
				http.Error(w, waits, http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		},
	})
}

// Registry returns a registry with the collectors of the process and the Go runtime.
func Registry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Metrics serves /metrics. It answers at most four requests at a time, each within ten seconds.
func Metrics(reg *prometheus.Registry) *serve.Mux {
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
	return serve.NewMux(map[string]http.HandlerFunc{"GET /metrics": metrics.ServeHTTP})
}

// Exit codes. The stoker command has further ones.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrUsage marks an invalid command line that was already reported to the user.
var ErrUsage = errors.New("usage")

// Flags returns a flag set that writes its usage and parse errors to out. The usage prints about above the flags and end below
// them.
func Flags(name string, out io.Writer, about, end string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprintf(out, "%s\n\nFlags:\n", about)
		f.PrintDefaults()
		fmt.Fprintf(out, "\n%s\n", end)
	}
	return f
}

// Parse parses args. The error wraps ErrUsage, or is flag.ErrHelp if args ask for help. Parse does not check whether the values
// make sense; see Explain.
func Parse(f *flag.FlagSet, args []string) error {
	usage := f.Usage
	f.Usage = func() {} // for a wrong flag, print two lines and not all flags
	err := f.Parse(args)
	f.Usage = usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err == nil:
		return nil
	}
	fmt.Fprintf(f.Output(), "See %s --help.\n", f.Name())
	return fmt.Errorf("%w: %w", ErrUsage, err)
}

// Explain reports everything that is wrong with a parsed command line at once: positional arguments and the given problems, of
// which some may be nil. It prints them and returns an error that wraps ErrUsage, or nil if there are none.
func Explain(f *flag.FlagSet, problems ...error) error {
	if f.NArg() > 0 {
		problems = slices.Insert(problems, 0, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	err := errors.Join(problems...)
	if err == nil {
		return nil
	}
	fmt.Fprintf(f.Output(), "%s\nSee %s --help.\n", err, f.Name())
	return fmt.Errorf("%w: %w", ErrUsage, err)
}

// OneOf returns an error if value is not one of the choices of flag name. The message omits the empty choice.
func OneOf(name, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return fmt.Errorf("--%s: %q is not one of %s", name, value, strings.Trim(strings.Join(choices, ", "), ", "))
}

// Exit returns the exit code for err. It prints err to stderr unless Parse or Explain already did.
func Exit(err error, name string, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return ExitDone
	case errors.Is(err, ErrUsage):
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return ExitFailed
}

// Texts is the value of a repeatable string flag.
type Texts []string

func (t *Texts) String() string { return "" }

// Set implements flag.Value.
func (t *Texts) Set(v string) error {
	if v == "" {
		return errors.New("it is empty")
	}
	*t = append(*t, v)
	return nil
}

// Settings are the flags of every binary that serves the GatewaySyncs of a cluster.
type Settings struct {
	// WatchNamespace lists the namespaces to serve; empty means all.
	WatchNamespace     Texts
	WatchLabelSelector string

	HealthAddr  string
	MetricsAddr string
	LogFormat   string
	LogLevel    string
	Kubeconfig  string
	Version     bool

	// Selector is the parsed WatchLabelSelector, set by Problems.
	Selector labels.Selector
}

// Register adds the flags of the settings.
func (s *Settings) Register(f *flag.FlagSet) {
	f.Var(&s.WatchNamespace, "watch-namespace", "a `namespace` to serve (repeatable); default: all")
	f.StringVar(&s.WatchLabelSelector, "watch-label-selector", "", "serve only objects of Stoker that this label `selector` admits")
	f.StringVar(&s.HealthAddr, "health-addr", ":8082", "`address` of /healthz and /readyz")
	f.StringVar(&s.MetricsAddr, "metrics-addr", ":8083", "`address` of /metrics")
	f.StringVar(&s.LogFormat, "log-format", "json", "json or text")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	f.BoolVar(&s.Version, "version", false, "print the version and exit")
}

// Problems parses the settings and returns what is wrong with them, for Explain. Some elements may be nil.
func (s *Settings) Problems() []error {
	problems := []error{OneOf("log-format", s.LogFormat, "json", "text"), LevelProblem(s.LogLevel)}
	for _, ns := range s.WatchNamespace {
		if len(validation.IsDNS1123Label(ns)) > 0 {
			problems = append(problems, fmt.Errorf("--watch-namespace: %q is not a valid namespace name", ns))
		}
	}
	var err error
	if s.Selector, err = labels.Parse(s.WatchLabelSelector); err != nil {
		problems = append(problems, fmt.Errorf("--watch-label-selector: %w", err))
	}
	return problems
}

// LevelProblem returns an error if level is not a value of --log-level.
func LevelProblem(level string) error {
	return OneOf("log-level", level, "debug", "info", "warn", "error")
}

// Log returns a logger that writes text if format is "text", and JSON otherwise. An unknown level means info.
func Log(out io.Writer, format, level string) *slog.Logger {
	o := &slog.HandlerOptions{}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err == nil {
		o.Level = l
	}
	if format == "text" {
		return slog.New(slog.NewTextHandler(out, o))
	}
	return slog.New(slog.NewJSONHandler(out, o))
}
