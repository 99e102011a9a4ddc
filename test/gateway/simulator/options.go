package simulator

import (
	"errors"
	"log/slog"
	"time"
)

// Options say which gateway to play. Only Data is needed.
type Options struct {
	// Data is the data directory. It must exist.
	Data string
	// Listen and Admin are the addresses of the gateway's http port and of the simulator's own; default 127.0.0.1:0.
	Listen, Admin string
	// TLS opens an https port as well.
	TLS *TLSOptions

	// Name is the gateway's name, default "gateway"; Version its version, default 8.3.8. Before 8.3 it has none of the
	// routes below /data/api/v1. Mode is the active deployment mode, "" for none.
	Name, Version, Mode string
	// FixedName makes Name win over the configuration's systemName, as the start argument -n may.
	FixedName bool
	// Role is Independent (default), Master or Backup. A backup has no access to its configuration; see Pair.
	Role string
	// ScanModule installs the third-party project-scan module.
	ScanModule bool

	// Seeding says how an empty data directory is filled.
	Seeding Seeding
	// Down leaves the gateway stopped until SetState or Restart; its port refuses connections.
	Down bool
	// Commissioning stops the start before RUNNING, until Commission.
	Commissioning bool
	// ResetPermissions makes the first start after seeding rewrite ignition/security-properties, which drops grants.
	ResetPermissions bool
	// StartupDelay is how long the gateway shows STARTING. With zero, Start returns when the start is over.
	StartupDelay time.Duration
	// ScanDelay is how long a scan shows as active before it reads the tree.
	ScanDelay time.Duration
	// ClockSkew is added to the clock of the gateway.
	ClockSkew time.Duration
	// ProjectsTimer is how often the gateway scans its projects by itself; 0 is its own 300 s, negative is never.
	ProjectsTimer time.Duration
	// NoiseEvery is how often the gateway makes one of Noises; 0 is never.
	NoiseEvery time.Duration

	// Token is the API token <name>:<key> to accept; "" makes one up, see Gateway.Token. The token gets the level
	// Authenticated/ApiKeys/Stoker, which the seeded permissions admit, and works over http.
	Token string
	// Strict answers 400 to a parameter or a body on the scan routes, and records a violation.
	Strict bool
	// NoWriteBack leaves resource.json files as they are where a projects scan finds another content than was signed.
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
	// Names are the certificate's DNS names; default gateway.example, which is not what clients connect to.
	Names []string
	// NotAfter ends the certificate's validity; default in a day.
	NotAfter time.Time
}

// Seeding is a way to fill an empty data directory.
type Seeding int

const (
	// SeedImage fills the directory if it is empty, as the image does. One that is neither empty nor seeded is left
	// alone, and the gateway faults.
	SeedImage Seeding = iota
	// SeedChart fills the directory if it has no marker, over what is there, as the chart's init container does.
	SeedChart
	// SeedNone takes the directory as it is.
	SeedNone
)

// Unknowns are behaviours that no source settles. Tests should hold both ways.
type Unknowns struct {
	// CoalescePosts joins a POST during an active scan to that scan; else one more scan follows.
	CoalescePosts bool
	// SignConfig makes a config scan sign changed resources of core and of the mode, as a projects scan does.
	SignConfig bool
	// LockWaits makes a request for a held scan lock wait for acquireTimeout and answer 408; else it is 409 at once.
	LockWaits bool
	// InsecureIs401 answers 401 to a token that requires a secure connection; else 403.
	InsecureIs401 bool
	// ForgetScans sets lastScanTimestamp to zero at a restart; else the start counts as a scan.
	ForgetScans bool
	// RunnableOnly leaves disabled projects out of projects/list.
	RunnableOnly bool
	// NoScanOnBackup makes a node without config access answer 403 to a scan.
	NoScanOnBackup bool
	// ReplicateAllFiles makes a pair copy files too that are no part of a resource.
	ReplicateAllFiles bool
	// TimerIgnoresLock lets the projects timer scan while a scan lock is held; else that turn is left out.
	TimerIgnoresLock bool
	// LateActive answers a POST for a scan before it shows as active.
	LateActive bool
	// SkipUnchanged leaves a resource as it was loaded where its resource.json did not change, whatever its files hold.
	SkipUnchanged bool
	// ResetInMode makes the commissioning write its permissions into the active mode; else into core.
	ResetInMode bool
	// RemainingMillis gives the rest of a scan lock in milliseconds; else in seconds.
	RemainingMillis bool
	// LeafNames lists resources in folders by their last name; else by their path.
	LeafNames bool
	// JSONErrors answers errors below /data as JSON; else as the web server's HTML page.
	JSONErrors bool
	// TimesAsText gives times as RFC 3339; else as milliseconds.
	TimesAsText bool
	// OpenAPIIs403 answers 403 to who asks for openapi.json without a token; else 401.
	OpenAPIIs403 bool
	// TrialStopsScans answers 403 to a scan when the trial has expired.
	TrialStopsScans bool
	// OtherStates makes a starting gateway say that it is in a state that no source names.
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
