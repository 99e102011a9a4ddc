package simulator

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// Options configure a Gateway. Only Data is required.
type Options struct {
	// Data is the data directory. It must exist.
	Data string
	// Listen and Admin are the addresses of the gateway's http port and of the simulator's own interface; default
	// 127.0.0.1:0.
	Listen, Admin string
	// TLS also opens an https port.
	TLS *TLSOptions

	// Name is the gateway's name, default "gateway". Version is its version, default 8.3.8; before 8.3 it has none of
	// the routes below /data/api/v1. Mode is the active deployment mode, or "".
	Name, Version, Mode string
	// FixedName makes Name override the configuration's systemName, as the start argument -n may.
	FixedName bool
	// Role is Independent (default), Master or Backup. A backup has no access to its configuration; see Pair.
	Role string
	// Modules are the ids of the modules that run, by default those that come with Ignition.
	Modules []string
	// ScanModule installs the third-party project-scan module.
	ScanModule bool

	// Seeding is how the data directory is filled before the first start.
	Seeding Seeding
	// Down leaves the gateway stopped until SetState or Restart. Its port refuses connections.
	Down bool
	// Commissioning stops the startup before RUNNING, until SetState(Running).
	Commissioning bool
	// ResetPermissions makes the first start after seeding rewrite ignition/security-properties, which drops grants.
	ResetPermissions bool
	// ResetAlways makes every start do so.
	ResetAlways bool
	// NoLocalTokens ignores API tokens of the collection local, and so the one that the agent makes for itself.
	NoLocalTokens bool
	// DeclaredLevels gives a token only the levels that ignition/security-levels declares.
	DeclaredLevels bool
	// ScanDelay is how long a scan shows as active before it reads the tree.
	ScanDelay time.Duration
	// ClockSkew is added to the gateway's clock.
	ClockSkew time.Duration
	// ProjectsTimer is the interval at which the gateway scans its projects by itself; 0 means the gateway's 300 s,
	// negative means never.
	ProjectsTimer time.Duration

	// Token is the API token <name>:<key> to accept; "" generates one, see Gateway.Token. The token gets the level
	// Authenticated/ApiKeys/Stoker, which the seeded permissions admit, and works over http.
	Token string
	// Strict answers 400 to a parameter or a body on the scan routes, and records a violation.
	Strict bool
	// NoWriteBack leaves resource.json unchanged if a projects scan finds other content than was signed.
	NoWriteBack bool
	// NoBlobs keeps no copies in projects/.resources.
	NoBlobs bool

	Unknowns Unknowns
	Log      *slog.Logger
}

// TLSOptions describe the https port and its self-signed certificate.
type TLSOptions struct {
	// Listen is the address, default 127.0.0.1:0.
	Listen string
	// Names are the certificate's DNS names; default gateway.example, which clients do not connect to.
	Names []string
	// NotAfter is the end of the certificate's validity; default in a day.
	NotAfter time.Time
}

// Seeding is a way to fill the data directory before the first start.
type Seeding int

const (
	// SeedImage fills the directory if it is empty, like the image. It leaves a directory alone that is neither empty
	// nor seeded, and the gateway faults.
	SeedImage Seeding = iota
	// SeedChart fills the directory if it has no marker, over existing files, like the chart's init container.
	SeedChart
	// SeedNone uses the directory as it is.
	SeedNone
)

// Unknowns are behaviors that no source settles. Tests should pass either way.
type Unknowns struct {
	// CoalescePosts joins a POST during an active scan to that scan; otherwise another scan follows.
	CoalescePosts bool
	// SignConfig makes a config scan sign changed resources of core and of the mode, like a projects scan.
	SignConfig bool
	// LockWaits makes a request for a held scan lock wait for acquireTimeout and answer 408; otherwise it answers 409
	// at once.
	LockWaits bool
	// InsecureIs401 answers 401 to a token that requires a secure connection; otherwise 403.
	InsecureIs401 bool
	// ForgetScans sets lastScanTimestamp to zero at a restart; otherwise the start counts as a scan.
	ForgetScans bool
	// RunnableOnly omits disabled projects from projects/list.
	RunnableOnly bool
	// NoScanOnBackup makes a node without config access answer 403 to a scan.
	NoScanOnBackup bool
	// ReplicateAllFiles makes a pair also copy files that belong to no resource.
	ReplicateAllFiles bool
	// TimerIgnoresLock lets the projects timer scan while a scan lock is held; otherwise that scan is skipped.
	TimerIgnoresLock bool
	// LateActive answers a POST for a scan before the scan shows as active.
	LateActive bool
	// SkipUnchanged does not reload a resource whose signed resource.json did not change, whatever its files contain.
	SkipUnchanged bool
	// ResetInMode makes commissioning write its permissions into the active mode; otherwise into core.
	ResetInMode bool
	// RemainingMillis reports the remaining time of a scan lock in milliseconds; otherwise in seconds.
	RemainingMillis bool
	// LeafNames lists resources in folders by their last name; otherwise by their path.
	LeafNames bool
	// JSONErrors makes a running gateway answer errors below /data as JSON; otherwise as the web server's HTML page.
	JSONErrors bool
	// TimesAsText reports times as RFC 3339; otherwise as milliseconds.
	TimesAsText bool
	// OpenAPIIs403 answers 403 to a request for openapi.json without a known token; otherwise 401.
	OpenAPIIs403 bool
	// TrialStopsScans answers 403 to a scan when the trial has expired.
	TrialStopsScans bool
	// SaveInPlace makes a Designer and the web interface write into a file; otherwise they replace it.
	SaveInPlace bool
	// OtherStates makes a starting gateway report a state that no source names.
	OtherStates bool
}

func (o Options) withDefaults() (Options, error) {
	if o.Data == "" {
		return o, errors.New("the simulator needs a data directory")
	}
	for value, def := range map[*string]string{
		&o.Listen: "127.0.0.1:0", &o.Admin: "127.0.0.1:0", &o.Name: "gateway", &o.Version: "8.3.8", &o.Role: "Independent",
	} {
		if *value == "" {
			*value = def
		}
	}
	if o.Modules == nil {
		o.Modules = standardModules()
	}
	if o.ProjectsTimer == 0 {
		o.ProjectsTimer = 300 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.TLS != nil {
		t := *o.TLS
		if t.Listen == "" {
			t.Listen = "127.0.0.1:0"
		}
		if len(t.Names) == 0 {
			t.Names = []string{"gateway.example"}
		}
		if t.NotAfter.IsZero() {
			t.NotAfter = time.Now().Add(24 * time.Hour)
		}
		o.TLS = &t
	}
	return o, nil
}

// standardModules returns the ids of modules that come with Ignition.
func standardModules() []string {
	var ids []string
	for _, name := range strings.Fields("alarm-notification eam eventstream historian opcua perspective reporting sfc vision webdev") {
		ids = append(ids, "com.inductiveautomation."+name)
	}
	return ids
}

// before83 reports whether the version is older than 8.3.
func (o *Options) before83() bool {
	parts := strings.SplitN(o.Version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	return major < 8 || major == 8 && minor < 3
}

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

// run is the state of the gateway and its current run. Its mutex also guards what a restart drops, that is scans, scan locks
// and Designer sessions, so that a running gateway never appears without them.
type run struct {
	log *slog.Logger

	mu      sync.Mutex
	state   State
	reason  string          // why it is Faulted
	life    context.Context // ends with Close
	endLife context.CancelFunc
	ctx     context.Context // ends with Close, and when a restart or SetState ends the run
	endRun  context.CancelFunc
	wg      sync.WaitGroup
}

func newRun(log *slog.Logger) *run {
	r := &run{log: log, state: Down}
	r.life, r.endLife = context.WithCancel(context.Background())
	r.ctx, r.endRun = context.WithCancel(r.life)
	return r
}

func (r *run) status() (State, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.reason
}

// current returns the context of the current run.
func (r *run) current() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// renewLocked ends the current run and starts the next. The caller holds mu.
func (r *run) renewLocked() {
	r.endRun()
	r.ctx, r.endRun = context.WithCancel(r.life)
}

// close ends the life of the gateway.
func (r *run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLife()
}

// spawn runs f in a goroutine, unless the gateway is closed.
func (r *run) spawn(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() == nil {
		r.wg.Go(f)
	}
}

// set changes the state, unless ctx is done: then a later call controls the state.
func (r *run) set(ctx context.Context, to State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() == nil {
		r.setLocked(to, reason)
	}
}

// setLocked is set for a caller that holds mu. It keeps the reason only for Faulted.
func (r *run) setLocked(to State, reason string) {
	if r.state != to {
		r.log.Info("simulated gateway", "state", to, "reason", reason)
	}
	r.state, r.reason = to, ""
	if to == Faulted {
		r.reason = reason
	}
}

type logLevel int

const (
	levelInfo logLevel = iota
	levelWarn
	levelError
)

func (l logLevel) String() string { return []string{"INFO", "WARN", "ERROR"}[l] }

// parseLevel parses a minimum level. Levels below INFO, which the simulator never logs, mean INFO.
func parseLevel(s string) logLevel {
	for _, l := range []logLevel{levelWarn, levelError} {
		if s == l.String() {
			return l
		}
	}
	return levelInfo
}

type logLine struct {
	at      time.Time
	level   logLevel
	logger  string
	message string
}

const maxLogLines = 5000

// LogBook is the gateway's log. When it exceeds maxLogLines, it keeps only the newest half.
type LogBook struct {
	clock *clock
	mu    sync.Mutex
	lines []logLine
}

func (b *LogBook) add(level logLevel, logger, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, logLine{b.clock.now(), level, logger, message})
	if len(b.lines) > maxLogLines {
		b.lines = slices.Clone(b.lines[len(b.lines)-maxLogLines/2:])
	}
}

// since returns the first limit lines that are not older than from, in the gateway's clock, have at least the level
// minLevel, and come from logger, or from any if it is "".
func (b *LogBook) since(from time.Time, minLevel logLevel, logger string, limit int) []logLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []logLine
	for _, l := range b.lines {
		if len(found) == limit {
			break
		}
		at := l.at.Truncate(time.Millisecond) // the precision of the REST interface
		if !at.Before(from) && l.level >= minLevel && (logger == "" || l.logger == logger) {
			found = append(found, l)
		}
	}
	return found
}

// Error adds a line of level ERROR.
func (b *LogBook) Error(logger, message string) { b.add(levelError, logger, message) }

// get answers the lines that a request selects.
func (b *LogBook) get(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	start, _ := strconv.ParseInt(q.Get("startTime"), 10, 64)
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 0 {
		limit = 100
	}
	lines := b.since(time.UnixMilli(start), parseLevel(q.Get("minLevel")), q.Get("logger"), limit)
	items := make(ordered.Array, 0, len(lines))
	for _, l := range lines {
		items = append(items, ordered.Object{
			{"timestamp", b.clock.moment(l.at)}, {"loggerName", l.logger}, {"level", l.level.String()}, {"message", l.message},
		})
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"items", items}})
}
