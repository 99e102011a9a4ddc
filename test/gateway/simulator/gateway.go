// Package simulator simulates an Ignition 8.3 gateway for tests and demonstrations: its data directory, states, tokens,
// scans, scan locks and REST routes, as far as they are known from the vendor's documentation and from live gateways.
// It shares no code with the agent, so that each is a check on the other.
//
// The simulated gateway knows only the snapshot of its last scan: writing a file has no effect until a scan reads it. A
// scan reads the tree as it is at that moment. Half-written files become load errors and log lines. Unknown behavior of
// the real gateway is a switch in Unknowns.
//
// The fields of a Gateway are its subjects: Scans, Locks, Designers, Data and others. Each has its routes, its state, and the
// methods with which a test controls it. What needs no running gateway is in packages below this one.
//
// With a Version before 8.3 the gateway has no REST interface except that of the third-party project-scan module, and
// signs its projects like 8.1. Two gateways make a redundant Pair.
package simulator

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/port"
	"stoker.io/stoker/test/gateway/simulator/resource"
	"stoker.io/stoker/test/gateway/simulator/seed"
)

// The kinds of scans and scan locks.
const (
	kindProjects = "projects"
	kindConfig   = "config"
)

// Gateway is a simulated gateway. Its methods and those of its fields may be called from several goroutines. The fields are
// its subjects, each with its routes, its state and what tests control.
type Gateway struct {
	// Requests and Faults observe the routes and make them fail.
	Requests *RequestLog
	Faults   *FaultList
	Logs     *LogBook

	// Data is the data directory and what the gateway has loaded of it.
	Data       *Data
	LoadFaults *LoadFaults
	Canaries   *datadir.Canaries
	Noise      *NoiseMaker

	Scans         *Scans
	Locks         *Locks
	Designers     *Designers
	Administrator *Administrator
	Redundancy    *Redundancy
	Restarts      *Restarts
	Trial         *Trial

	opts  *Options // does not change
	root  *os.Root
	log   *slog.Logger
	clock *clock
	run   *run
	auth  *authorizer
	info  *info

	keys               *port.KeyStore // nil without Options.TLS
	http, https, admin *port.Port

	mu            sync.Mutex
	commissioning bool // the next start stops before RUNNING
	firstStart    bool // seeded, and not started since
	token         string
}

// Start starts a gateway on a data directory. It returns when the startup is over; State tells
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
	g := newGateway(&opts, root)
	if err := g.start(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func newGateway(opts *Options, root *os.Root) *Gateway {
	g := &Gateway{opts: opts, root: root, log: opts.Log, commissioning: opts.Commissioning}
	g.run = newRun(opts.Log)
	g.clock = &clock{skew: opts.ClockSkew, asText: opts.Unknowns.TimesAsText}
	g.Requests = &RequestLog{counts: map[string]int{}}
	g.Faults = &FaultList{matched: map[string]bool{}}
	g.Logs = &LogBook{clock: g.clock}
	g.LoadFaults = &LoadFaults{root: root}
	g.Canaries = datadir.NewCanaries(root)
	g.Data = &Data{opts: opts, root: root, canaries: g.Canaries, clock: g.clock, logs: g.Logs, faults: g.LoadFaults}
	g.auth = &authorizer{opts: opts, data: g.Data}
	g.Noise = &NoiseMaker{data: g.Data}
	g.Redundancy = newRedundancy(opts.Role)
	g.Restarts = &Restarts{restart: g.restartInBackground}
	g.Trial = &Trial{}
	g.Locks = &Locks{opts: opts, clock: g.clock, run: g.run, data: g.Data}
	g.Scans = &Scans{
		opts: opts, clock: g.clock, run: g.run, data: g.Data, locks: g.Locks, logs: g.Logs, requests: g.Requests,
		redundancy: g.Redundancy, trial: g.Trial,
	}
	g.Designers = &Designers{clock: g.clock, run: g.run, data: g.Data, locks: g.Locks, redundancy: g.Redundancy}
	g.Administrator = &Administrator{data: g.Data}
	g.info = &info{opts: opts, data: g.Data, designers: g.Designers, redundancy: g.Redundancy}
	g.resetLocked() // no other goroutine has g
	return g
}

func (g *Gateway) start() error {
	if err := g.Canaries.Record(); err != nil {
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
	g.admin = port.New(g.opts.Admin, admin{g}.handler(), nil)
	if err := g.admin.Open(); err != nil {
		return err
	}
	if g.opts.Down {
		// Determine the addresses now, so that clients can be created before the gateway runs.
		err := g.openPorts()
		g.closePorts()
		return err
	}
	return g.startUp(0)
}

func (g *Gateway) seedOnce() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	seeded, err := g.Data.seed()
	g.firstStart = g.firstStart || seeded
	return err
}

// Close stops the gateway and waits for its goroutines. It keeps the data directory. It returns an error if no request has
// matched a fault that a test added.
func (g *Gateway) Close() error {
	g.run.close()
	for _, p := range []*port.Port{g.http, g.https, g.admin} {
		if p != nil {
			p.Shutdown()
		}
	}
	g.run.wg.Wait()
	return errors.Join(g.root.Close(), g.Faults.check())
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

// Token returns the API token that the gateway issued, <name>:<key>, or "" before the first start has issued it. A gateway
// before 8.3 issues none.
func (g *Gateway) Token() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token
}

// State returns the state and, for Faulted, the reason.
func (g *Gateway) State() (State, string) { return g.run.status() }

// startupFault returns what prevents a gateway from starting on this data directory, or nil.
func (d *Data) startupFault() error {
	if err := d.checkWritable(); err != nil {
		return fmt.Errorf("the data directory cannot be written to: %w", err)
	}
	if d.opts.before83() {
		return nil // its configuration is in a database
	}
	if !datadir.Exists(d.root, path.Join(datadir.ResourcesDir, "core", "config-mode.json")) {
		return errors.New("there is no resource collection core: the data directory was not empty, and so was never seeded")
	}
	external, err := datadir.List(d.root, path.Join(datadir.ResourcesDir, "external"))
	if err != nil {
		return err
	}
	if len(external) > 0 && !datadir.Exists(d.root, path.Join(datadir.ResourcesDir, "external", "config-mode.json")) {
		return errors.New("the collection external exists but is not empty and has no config-mode.json")
	}
	loaded, _ := resource.LoadConfig(d.root, d.opts.Mode, nil)
	if singleton := singletonOnlyInMode(loaded, d.opts.Mode); singleton != "" {
		return fmt.Errorf("the singleton %s is defined in the mode %s only: it must be in core or external", singleton, d.opts.Mode)
	}
	_, problems := resource.LoadProjects(d.root, nil)
	for _, p := range problems {
		if errors.Is(p.Err, resource.ErrNoAttributes) {
			return fmt.Errorf("ProjectResourceBuilder.setAttributes: %s", p)
		}
	}
	return nil
}

func (d *Data) checkWritable() error {
	probe := "var/ignition/probe"
	if err := datadir.Write(d.root, probe, nil); err != nil {
		return err
	}
	return d.root.Remove(probe)
}

// singletonOnlyInMode returns a singleton resource that the mode defines, but neither core nor external, or "".
func singletonOnlyInMode(c resource.Config, mode string) string {
	if mode == "" {
		return ""
	}
	for _, name := range c.Collection(mode).Tree.Names("") {
		_, _, in := c.Effective(name)
		if strings.Count(name, "/") == 1 && !slices.Contains(in, "core") && !slices.Contains(in, "external") {
			return name
		}
	}
	return ""
}

// seed fills the data directory according to Options.Seeding, and reports whether it did. The start that follows is the
// first one.
func (d *Data) seed() (seeded bool, err error) {
	switch d.opts.Seeding {
	case SeedImage:
		list, err := datadir.List(d.root, ".")
		if err != nil || len(list) > 0 {
			return false, err
		}
	case SeedChart:
		if datadir.Exists(d.root, datadir.SeedMarker) {
			return false, nil
		}
		// The chart's script sets the marker before it copies.
		if err := d.canaries.Write(datadir.SeedMarker, nil); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	for name, raw := range seed.Platform(d.opts.Role) {
		if err := d.canaries.Write(name, raw); err != nil {
			return true, err
		}
	}
	if err := d.root.MkdirAll(datadir.BlobDir, 0o755); err != nil {
		return true, err
	}
	if err := d.seedResources(); err != nil {
		return true, err
	}
	return true, d.canaries.Write(datadir.SeedMarker, nil)
}

// seedResources writes the resource collections of a fresh gateway.
func (d *Data) seedResources() error {
	for name, raw := range seed.Collections(d.opts.Mode) {
		if err := d.canaries.Write(path.Join(datadir.ResourcesDir, name, "config-mode.json"), raw); err != nil {
			return err
		}
	}
	for name, doc := range seed.Resources(d.opts.Name, ownTokenLevel) {
		dir := path.Join(datadir.ResourcesDir, "core", name)
		files := map[string][]byte{"config.json": ordered.Pretty(doc)}
		if _, err := d.saveResource(dir, resource.New(name, "A"), "initialization", files); err != nil {
			return err
		}
	}
	return nil
}

// ownTokenLevel is the security level of the token that the simulator issues.
const ownTokenLevel = "Authenticated/ApiKeys/Stoker"
