package wire

import (
	"cmp"
	"log/slog"
	"time"

	"stoker.io/stoker/internal/secret"
)

// Auth holds the credentials of a Client. Its functions are called for every use, so that a rotated file counts at once.
type Auth struct {
	// Field is the field of the spec that errors name; default git.auth.
	Field string
	// Username for basic authentication; default "git".
	Username string
	// Token is the password or access token; nil if there is none. It goes only to the repository's own scheme, host and port.
	Token func() (secret.String, error)
	// App is a GitHub App whose tokens are used instead of Token; nil if there is none.
	App *GitHubApp
	// Key is the private key for ssh, in PEM or OpenSSH form and without a passphrase; nil if there is none.
	Key func() (secret.String, error)
	// KnownHosts returns the trusted ssh host keys in the form of known_hosts. If it is nil, the built-in keys of the public git
	// hosts are trusted. If it is set, only what it returns is trusted; an empty result trusts no host.
	KnownHosts func() ([]byte, error)
	// InsecureIgnoreHostKey accepts any ssh host key.
	InsecureIgnoreHostKey bool
	// CA returns a PEM bundle that is trusted in addition to the system's; nil if there is none.
	CA func() ([]byte, error)
}

func (a Auth) field() string { return cmp.Or(a.Field, "git.auth") }

// Options configures a Client. Zero fields take the default.
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
	// SearchBytes is the maximum size of all packs that are received to search for a commit that the server does not serve by
	// its id; default 1 GiB.
	SearchBytes int64
	// MaxRefs is the maximum number of refs of a repository; default 200,000.
	MaxRefs int
}

// WithDefaults returns o with the default in each zero field.
func (o Options) WithDefaults() Options {
	duration := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	duration(&o.Connect, 10*time.Second)
	duration(&o.Handshake, 10*time.Second)
	duration(&o.Advertise, time.Minute)
	duration(&o.Total, 30*time.Minute)
	duration(&o.StallWindow, time.Minute)
	if o.StallBytes <= 0 {
		o.StallBytes = 16
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 8 << 30
	}
	if o.SearchBytes <= 0 {
		o.SearchBytes = 1 << 30
	}
	if o.MaxRefs <= 0 {
		o.MaxRefs = 200_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
