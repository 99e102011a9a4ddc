package repo

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Auth is how a Remote proves who it is. Its functions are called for every use, so that a rotated file counts at once.
type Auth struct {
	// Username for basic authentication; default "git".
	Username string
	// Token is the password or access token; nil for none. It is sent to the repository's own scheme, host and port only.
	Token func() (secret.String, error)
	// App is a GitHub App whose tokens are used in the place of Token; nil for none.
	App *GitHubApp
	// Key is the private key for ssh, in PEM or OpenSSH form and without a passphrase; nil for none.
	Key func() (secret.String, error)
	// KnownHosts has the ssh host keys that are trusted, in the form of known_hosts; nil for the built-in keys of the public
	// git hosts. What it returns counts alone: empty, it trusts nobody.
	KnownHosts func() ([]byte, error)
	// InsecureIgnoreHostKey takes any ssh host key.
	InsecureIgnoreHostKey bool
	// CA is a PEM bundle that is trusted beside the system's; nil for none.
	CA func() ([]byte, error)
}

// RemoteOptions configures a Remote. Zero fields take the default.
type RemoteOptions struct {
	Log       *slog.Logger  // default: discard
	Connect   time.Duration // for a TCP connection; default 10s
	Handshake time.Duration // for TLS or ssh; default 10s
	Advertise time.Duration // for a whole ref advertisement; default 1m
	Total     time.Duration // for a whole fetch; default 30m
	// StallBytes must arrive in every StallWindow, or the connection counts as dead; default 16 bytes in 1m. git servers
	// that are busy send a few bytes every 5 s.
	StallBytes  int64
	StallWindow time.Duration
	// MaxBytes is the most that one response may have; default 8 GiB.
	MaxBytes int64
	// SearchBytes is the most that may come while a commit is looked for that the server does not give by its id; default
	// 1 GiB.
	SearchBytes int64
	// MaxRefs is the most refs that a repository may have; default 200,000.
	MaxRefs int
}

func (o RemoteOptions) withDefaults() RemoteOptions {
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

// Remote is a repository somewhere else. Its methods may be called from several goroutines.
type Remote struct {
	url    URL
	opts   RemoteOptions
	source source
}

// source is a way to a repository: over the network, or a directory.
type source interface {
	// refs returns what the repository has; an empty one has none.
	refs(ctx context.Context) (*refs, error)
	// fetch receives the commit of f, with what it needs, into a new pack.
	fetch(ctx context.Context, f *fetch) (*incoming, error)
	// blobs receives blobs of the commit of f into a new pack.
	blobs(ctx context.Context, f *fetch, ids []plan.ID) (*incoming, error)
	// reaches reports whether the commit of f is one of tips or among their ancestors.
	reaches(ctx context.Context, f *fetch, tips []plan.ID) (bool, error)
	// close gives back what is kept between two uses.
	close() error
}

// NewRemote prepares the way to u; nothing is sent yet. Credentials of u count where auth has none.
func NewRemote(u URL, auth Auth, o RemoteOptions) (*Remote, error) {
	if u.IsZero() {
		return nil, errors.New("no repository was given")
	}
	r := &Remote{url: u, opts: o.withDefaults()}
	if u.Local() {
		r.source = &local{url: u, opts: r.opts}
		return r, nil
	}
	s := &smart{url: u, opts: r.opts}
	if u.SSH() {
		s.wire = &secureShell{url: u, auth: auth, opts: r.opts}
	} else {
		s.wire = newWeb(u, auth, r.opts)
	}
	r.source = s
	return r, nil
}

// URL returns the address.
func (r *Remote) URL() URL { return r.url }

// Close lets idle connections go. The Remote can still be used.
func (r *Remote) Close() error { return r.source.close() }

// Resolution is what a ref stands for at this moment.
type Resolution struct {
	Ref    string // full name, "" for a commit that was asked for by its id
	Commit plan.ID
}

// Resolve finds the commit that a ref stands for. It costs one ref advertisement; a ref that is a commit's id costs
// nothing here, and Fetch finds out whether the repository has it.
func (r *Remote) Resolve(ctx context.Context, ref Ref) (Resolution, error) {
	if id, ok := ref.Commit(); ok {
		return Resolution{Commit: id}, nil
	}
	if ref.IsZero() {
		return Resolution{}, failure.New(v1alpha1.ReasonRefNotFound, "git.ref is empty: give a branch, a tag or a commit id")
	}
	all, err := r.source.refs(ctx)
	if err != nil {
		return Resolution{}, err
	}
	return all.resolve(r.url, ref)
}

func (r *Remote) fetch(ctx context.Context, f *fetch) (*incoming, error) {
	return r.source.fetch(ctx, f)
}

// advertised keeps the last advertisement for the Fetch that follows.
type advertised[T any] struct {
	mu   sync.Mutex
	last T
	at   time.Time
	full bool
}

// fresh is how long an advertisement counts as the one of this sync.
const fresh = time.Minute

func (a *advertised[T]) put(v T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last, a.at, a.full = v, time.Now(), true
}

// take returns the last advertisement once.
func (a *advertised[T]) take() (T, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, ok := a.last, a.full && time.Since(a.at) < fresh
	var zero T
	a.last, a.full = zero, false
	return v, ok
}
