package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
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
// returns after all of them have ended. If a server cannot be opened, the error names its flag. The loops find the log in their
// context, as client-go does.
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
