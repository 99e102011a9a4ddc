package daemon

import (
	"flag"
	"fmt"
	"io"
	"log/slog"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

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

// Problems parses the settings and returns what is wrong with them, for Explain.
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
