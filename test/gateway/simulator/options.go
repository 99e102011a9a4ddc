package simulator

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"
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

	// Seeding is how an empty data directory is filled.
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

// Seeding is a way to fill an empty data directory.
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
	// SkipUnchanged does not reload a resource whose resource.json did not change, whatever its files contain.
	SkipUnchanged bool
	// ResetInMode makes commissioning write its permissions into the active mode; otherwise into core.
	ResetInMode bool
	// RemainingMillis reports the remaining time of a scan lock in milliseconds; otherwise in seconds.
	RemainingMillis bool
	// LeafNames lists resources in folders by their last name; otherwise by their path.
	LeafNames bool
	// JSONErrors answers errors below /data as JSON; otherwise as the web server's HTML page.
	JSONErrors bool
	// TimesAsText reports times as RFC 3339; otherwise as milliseconds.
	TimesAsText bool
	// OpenAPIIs403 answers 403 to a request for openapi.json without a token; otherwise 401.
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
