package wire

import (
	"cmp"
	"log/slog"
	"time"

	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Auth holds the credentials of a Client. The client calls its functions for every use, so that a rotated secret takes effect at
// once.
type Auth struct {
	// Field is the field of the spec that errors name; default git.auth.
	Field string
	// Username for basic authentication; default "git".
	Username string
	// Token returns the password or access token; nil if there is none. The client sends it only to the repository's scheme, host
	// and port.
	Token func() (secret.String, error)
	// App is a GitHub App whose tokens are used instead of Token; nil if there is none.
	App *GitHubApp
	// Key returns the private key for ssh, in PEM or OpenSSH form and without a passphrase; nil if there is none.
	Key func() (secret.String, error)
	// KnownHosts returns the trusted ssh host keys in the form of known_hosts; an empty result trusts no host. If KnownHosts is
	// nil, the client trusts the built-in keys of the public git hosts.
	KnownHosts func() ([]byte, error)
	// InsecureIgnoreHostKey accepts any ssh host key.
	InsecureIgnoreHostKey bool
	// CA returns a PEM bundle that the client trusts in addition to that of the system; nil if there is none.
	CA func() ([]byte, error)
}

func (a Auth) field() string { return cmp.Or(a.Field, "git.auth") }

// Options configures a Client. A zero field means the default.
type Options struct {
	Log       *slog.Logger  // default: discard
	Connect   time.Duration // for a TCP connection; default 10s
	Handshake time.Duration // for TLS or ssh; default 10s
	Advertise time.Duration // for a whole ref advertisement; default 1m
	Total     time.Duration // for a whole fetch; default 30m
	// StallBytes must arrive in every StallWindow, or the connection counts as dead; default 16 bytes in 1m. Busy git servers
	// send a few bytes every 5 s.
	StallBytes  int64
	StallWindow time.Duration
	// MaxBytes is the maximum size of one response; default 8 GiB.
	MaxBytes int64
	// MaxBlob is the maximum size of a file of an artifact: DeltaBytes of the store that imports it; default 512 MiB.
	MaxBlob int64
	// SearchBytes is the maximum size of all packs of a search for a commit that the server does not serve by its id; default
	// 1 GiB.
	SearchBytes int64
	// MaxRefs is the maximum number of refs of a repository; default 200,000.
	MaxRefs int
	// Guard checks the addresses that are dialed, for a program that several users share; nil allows all.
	Guard *httpclient.Guard
}

// WithDefaults returns o with the default in each field that is zero or negative.
func (o Options) WithDefaults() Options {
	setDefault(&o.Connect, 10*time.Second)
	setDefault(&o.Handshake, 10*time.Second)
	setDefault(&o.Advertise, time.Minute)
	setDefault(&o.Total, 30*time.Minute)
	setDefault(&o.StallWindow, time.Minute)
	setDefault(&o.StallBytes, 16)
	setDefault(&o.MaxBytes, 8<<30)
	setDefault(&o.MaxBlob, 512<<20)
	setDefault(&o.SearchBytes, 1<<30)
	setDefault(&o.MaxRefs, 200_000)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T ~int | ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
