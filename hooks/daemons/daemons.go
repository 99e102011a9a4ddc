// Package daemons has the commands of stoker that run until they are stopped: each watches a kind, and of several replicas one acts.
package daemons

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
)

// Env is what the commands need of the program.
type Env struct {
	Stderr  io.Writer
	Connect func() (Cluster, error)
}

// Cluster is the cluster of a command, and the namespace that it runs in.
type Cluster struct {
	kube.Clients
	Namespace string
	Version   string // of the program
}

// addFlags adds the flags of a command that runs until it is stopped and watches a kind. The returned function validates and
// returns their values.
func addFlags(command *cobra.Command, kind string) func() (daemon.Settings, error) {
	var s daemon.Settings
	var watch []string
	f := command.Flags()
	f.StringArrayVar(&watch, "watch-namespace", nil, "a `namespace` to serve (repeatable); default: all")
	f.StringVar(&s.WatchLabelSelector, "watch-label-selector", "", "serve only "+kind+" that this label `selector` admits")
	f.StringVar(&s.HealthAddr, "health-addr", "127.0.0.1:8082", "`address` of /healthz and /readyz")
	f.StringVar(&s.MetricsAddr, "metrics-addr", "127.0.0.1:8083", "`address` of /metrics")
	f.StringVar(&s.LogFormat, "log-format", "text", "json or text")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	return func() (daemon.Settings, error) {
		s.WatchNamespace = watch
		if err := errors.Join(s.Problems()...); err != nil {
			return s, exit.Errorf(exit.Usage, "%w", err)
		}
		return s, nil
	}
}

// replica returns a name of this process for people who read the Lease.
func replica() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return fmt.Sprint(os.Getpid())
}
