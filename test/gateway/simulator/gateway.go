package simulator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
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
	canaries *canaries
	logs     *logBook
	requests *requestLog
	faults   *faultBook
	cert     *certificate

	front, frontTLS, admin *door

	ahead atomic.Int64 // nanoseconds skipped by Advance

	// saving is held while the gateway itself writes or loads resources, so that it never reads its own half-written
	// files.
	saving sync.Mutex

	mu         sync.Mutex
	state      State
	reason     string // why it is Faulted
	first      bool   // seeded, and not started since
	token      string
	projects   map[string]*project
	config     config
	loadErrors []string
	loadFaults []LoadFault
	scans      map[string]*scanner
	locks      map[string]*scanLock
	designers  map[string]*session
	sessions   int
	redundancy membership
	pending    []string  // restart tasks
	expired    bool      // the trial
	due        time.Time // next run of the projects timer in the gateway's clock, or zero
	timed      int       // scans started by the timer
	noises     int

	life   context.Context // ends with Close
	end    context.CancelFunc
	up     context.Context // ends with Close, at a restart and when the gateway goes down
	goDown context.CancelFunc
	wg     sync.WaitGroup
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
	g.canaries = &canaries{root: root}
	g.logs = &logBook{now: g.now}
	g.requests = &requestLog{counts: map[string]int{}}
	g.faults = &faultBook{}
	g.life, g.end = context.WithCancel(context.Background())
	g.up, g.goDown = context.WithCancel(g.life)
	g.forget()
	if err := g.open(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.noisy()
	return g, nil
}

func (g *Gateway) open() error {
	if err := g.canaries.record(); err != nil {
		return err
	}
	if g.opts.Seeding == SeedChart {
		// The chart seeds in an init container, before the gateway runs.
		if err := g.trySeed(); err != nil {
			return err
		}
	}
	g.front = &door{addr: g.opts.Listen, handler: g.frontHandler()}
	if g.opts.TLS != nil {
		var err error
		if g.cert, err = newCertificate(g.opts.TLS.Names, g.opts.TLS.NotAfter); err != nil {
			return err
		}
		g.frontTLS = &door{addr: g.opts.TLS.Listen, handler: g.frontHandler(), tls: g.tlsConfig()}
	}
	g.admin = &door{addr: g.opts.Admin, handler: g.adminHandler()}
	if err := g.admin.open(); err != nil {
		return err
	}
	if g.opts.Down {
		// Determine the address now, so that clients can be made before the gateway is up.
		err := g.openFront()
		g.closeFront()
		return err
	}
	return g.power(g.opts.StartupDelay)
}

func (g *Gateway) trySeed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	first, err := g.seed()
	g.first = g.first || first
	return err
}

// Close stops the gateway. It keeps the data directory.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.end()
	g.mu.Unlock()
	for _, d := range []*door{g.front, g.frontTLS, g.admin} {
		if d != nil {
			d.wall()
		}
	}
	g.wg.Wait()
	return g.root.Close()
}

// URL returns the http address of the gateway, which stays the same while the gateway is down.
func (g *Gateway) URL() string { return "http://" + g.front.address() }

// TLSURL returns the https address, or "" without Options.TLS.
func (g *Gateway) TLSURL() string {
	if g.frontTLS == nil {
		return ""
	}
	return "https://" + g.frontTLS.address()
}

// AdminURL returns the address of the simulator's own interface.
func (g *Gateway) AdminURL() string { return "http://" + g.admin.address() }

// CA returns the gateway's self-signed certificate in PEM, or nil without Options.TLS.
func (g *Gateway) CA() []byte {
	if c := g.certificate(); c != nil {
		return c.pem
	}
	return nil
}

func (g *Gateway) certificate() *certificate {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cert
}

// RotateTLS gives the https port another self-signed certificate, which new connections see. By default it keeps the
// names and is valid for a day.
func (g *Gateway) RotateTLS(names []string, notAfter time.Time) error {
	if g.frontTLS == nil {
		return errors.New("the gateway has no https port")
	}
	if len(names) == 0 {
		names = g.opts.TLS.Names
	}
	if notAfter.IsZero() {
		notAfter = time.Now().Add(24 * time.Hour)
	}
	fresh, err := newCertificate(names, notAfter)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.cert = fresh
	g.mu.Unlock()
	// A gateway's web server closes its connections when the key store changes.
	g.frontTLS.close()
	return g.frontTLS.open()
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

// Canaries returns an error if anything but the gateway changed, deleted or added a file that only the gateway may
// write.
func (g *Gateway) Canaries() error { return g.canaries.check() }

// RecordCanaries accepts the gateway's current own files as correct.
func (g *Gateway) RecordCanaries() error { return g.canaries.record() }

// LoadErrors lists what scans could not load so far, oldest first.
func (g *Gateway) LoadErrors() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.loadErrors...)
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
