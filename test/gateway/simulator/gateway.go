package simulator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/port"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// State is a state of the gateway.
type State string

// Down refuses connections; Starting and Faulted answer 503 to every route below /data; Commissioning redirects them to
// /welcome.
const (
	Down          State = "DOWN"
	Starting      State = "STARTING"
	Commissioning State = "COMMISSIONING"
	Running       State = "RUNNING"
	Faulted       State = "FAULTED"
)

// The kinds of scans and scan locks.
const (
	kindProjects = "projects"
	kindConfig   = "config"
)

// Gateway is a simulated gateway. Its methods may be called from several goroutines.
type Gateway struct {
	opts     Options
	root     *os.Root
	log      *slog.Logger
	canaries *datadir.Canaries
	logs     *logBook
	requests *requestLog
	faults   *faultList
	keys     *port.KeyStore // nil without Options.TLS

	http, https, admin *port.Port

	skipped atomic.Int64 // nanoseconds that Advance added to the clock

	// saving is held while the gateway itself writes or loads resources, so that it never reads its own half-written
	// files.
	filesMu sync.Mutex

	mu           sync.Mutex
	state        State
	reason       string // why it is Faulted
	firstStart   bool   // seeded, and not started since
	token        string
	projects     map[string]*resource.Project
	config       resource.Config
	loadErrors   []string
	loadFaults   []LoadFault
	scans        map[string]*scanState
	locks        map[string]*scanLock
	designers    map[string]*session
	sessionCount int
	redundancy   membership
	restartTasks []string // pending ones
	trialOver    bool
	timerDue     time.Time // next run of the projects timer in the gateway's clock, or zero
	timerScans   int       // scans started by the timer
	noiseCount   int

	lifeCtx    context.Context // ends with Close
	cancelLife context.CancelFunc
	runCtx     context.Context // ends with Close, at a restart and when the gateway goes down
	cancelRun  context.CancelFunc
	wg         sync.WaitGroup
}

// Start starts a gateway on a data directory. Without StartupDelay it returns when the startup is over; State tells
// whether the gateway runs. A gateway that faults is not an error of Start.
func Start(opts Options) (*Gateway, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(opts.Data)
	if err != nil {
		return nil, fmt.Errorf("the data directory: %w", err)
	}
	g := &Gateway{opts: opts, root: root, log: opts.Log, state: Down}
	g.redundancy = membership{access: opts.Role != "Backup", active: opts.Role != "Backup", peer: opts.Role != "Independent"}
	g.canaries = datadir.NewCanaries(root)
	g.logs = &logBook{now: g.now}
	g.requests = &requestLog{counts: map[string]int{}}
	g.faults = &faultList{}
	g.lifeCtx, g.cancelLife = context.WithCancel(context.Background())
	g.runCtx, g.cancelRun = context.WithCancel(g.lifeCtx)
	g.resetRuntime()
	if err := g.start(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.startNoise()
	return g, nil
}

func (g *Gateway) start() error {
	if err := g.canaries.Record(); err != nil {
		return err
	}
	if g.opts.Seeding == SeedChart {
		// The chart seeds in an init container, before the gateway runs.
		if err := g.seedOnce(); err != nil {
			return err
		}
	}
	g.http = port.New(g.opts.Listen, g.httpHandler(), nil)
	if g.opts.TLS != nil {
		var err error
		if g.keys, err = port.NewKeyStore(g.opts.TLS.Names, g.opts.TLS.NotAfter); err != nil {
			return err
		}
		g.https = port.New(g.opts.TLS.Listen, g.httpHandler(), g.keys.TLSConfig())
	}
	g.admin = port.New(g.opts.Admin, g.adminHandler(), nil)
	if err := g.admin.Open(); err != nil {
		return err
	}
	if g.opts.Down {
		// Determine the addresses now, so that clients can be created before the gateway runs.
		err := g.openPorts()
		g.closePorts()
		return err
	}
	return g.startUp(g.opts.StartupDelay)
}

func (g *Gateway) seedOnce() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	seeded, err := g.seed()
	g.firstStart = g.firstStart || seeded
	return err
}

// Close stops the gateway and waits for its goroutines. It keeps the data directory.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.cancelLife()
	g.mu.Unlock()
	for _, p := range []*port.Port{g.http, g.https, g.admin} {
		if p != nil {
			p.Shutdown()
		}
	}
	g.wg.Wait()
	return g.root.Close()
}

// URL returns the http address of the gateway, which stays the same while the gateway is down.
func (g *Gateway) URL() string { return "http://" + g.http.Address() }

// TLSURL returns the https address, or "" without Options.TLS.
func (g *Gateway) TLSURL() string {
	if g.https == nil {
		return ""
	}
	return "https://" + g.https.Address()
}

// AdminURL returns the address of the simulator's own interface.
func (g *Gateway) AdminURL() string { return "http://" + g.admin.Address() }

// CA returns the gateway's self-signed certificate in PEM, or nil without Options.TLS.
func (g *Gateway) CA() []byte {
	if g.keys == nil {
		return nil
	}
	return g.keys.PEM()
}

// RotateTLS gives the https port another self-signed certificate, which new connections see. By default it keeps the
// names and is valid for a day.
func (g *Gateway) RotateTLS(names []string, notAfter time.Time) error {
	if g.https == nil {
		return errors.New("the gateway has no https port")
	}
	if len(names) == 0 {
		names = g.opts.TLS.Names
	}
	if notAfter.IsZero() {
		notAfter = time.Now().Add(24 * time.Hour)
	}
	if err := g.keys.Renew(names, notAfter); err != nil {
		return err
	}
	// A gateway's web server closes its connections when the key store changes.
	g.https.Close()
	return g.https.Open()
}

// Token returns the API token that the gateway issued, <name>:<key>, or "" until the first start has issued it.
func (g *Gateway) Token() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token
}

// State returns the state and, for Faulted, the reason.
func (g *Gateway) State() (State, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state, g.reason
}

// Canaries returns an error if another program changed, deleted or added a file that only the gateway may write.
func (g *Gateway) Canaries() error { return g.canaries.Check() }

// RecordCanaries accepts the gateway's current own files as correct.
func (g *Gateway) RecordCanaries() error { return g.canaries.Record() }

// LoadErrors lists what scans could not load since Start, oldest first; at most 10,000.
func (g *Gateway) LoadErrors() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.loadErrors)
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
