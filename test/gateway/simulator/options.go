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
	// Role is Independent (default), Master or Backup. A backup has no access to its configuration.
	Role string

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
	// NoScanOnBackup makes a redundant backup answer 403 to a scan.
	NoScanOnBackup bool
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
