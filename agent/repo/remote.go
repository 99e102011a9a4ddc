package repo

import (
	"context"
	"errors"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

type (
	// URL is the address of a repository.
	URL = wire.URL
	// Auth holds the credentials of a Remote.
	Auth = wire.Auth
	// GitHubApp is an installation of a GitHub App.
	GitHubApp = wire.GitHubApp
	// RemoteOptions configures a Remote.
	RemoteOptions = wire.Options
)

// ParseURL reads the address of a repository. An error never repeats the text, which may hold a password.
func ParseURL(s string) (URL, error) { return wire.ParseURL(s) }

// RetryAfter returns how long the git server asked the client to wait, if it did.
func RetryAfter(err error) (time.Duration, bool) { return wire.RetryAfter(err) }

// Remote is a repository on a git server or in a directory of this machine. Its methods may be called from several goroutines.
type Remote struct {
	url    URL
	opts   RemoteOptions
	source source
}

// source is the access to a repository: a wire.Client or a directory.
type source interface {
	// Refs returns all refs. An empty repository has none.
	Refs(ctx context.Context) (*wire.Refs, error)
	// Fetch receives the commit of t, with its trees and blobs, into a new pack. It clears t.Base if the pack does not build on
	// it. ref is the name by which the commit was found, "" if there is none.
	Fetch(ctx context.Context, t *store.Transfer, ref string) (*store.Received, error)
	// Blobs receives blobs of the commit of t into a new pack.
	Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error)
	// Reaches reports whether the commit of t is one of tips or one of their ancestors.
	Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error)
	// CommitText returns the bytes of the commit of t, the tip of a ref.
	CommitText(ctx context.Context, t *store.Transfer) ([]byte, error)
	// TagText returns the bytes of an annotated tag, the id of t, that points to a commit of the store.
	TagText(ctx context.Context, t *store.Transfer, commit plan.ID) ([]byte, error)
	// PushRefs returns all refs of the service that accepts pushes.
	PushRefs(ctx context.Context) (*wire.Refs, error)
	// Push moves a ref from old to new, with the objects in pack.
	Push(ctx context.Context, ref string, from, to plan.ID, pack []byte) error
	// APIToken returns the token for the API of the forge.
	APIToken(ctx context.Context) (secret.String, error)
	// Close releases what is kept between two uses.
	Close() error
}

// NewRemote returns the Remote of u. Nothing is sent yet. Credentials in the URL are used if auth has none.
func NewRemote(u URL, auth Auth, o RemoteOptions) (*Remote, error) {
	if u.IsZero() {
		return nil, errors.New("no repository was given")
	}
	r := &Remote{url: u, opts: o.WithDefaults()}
	if u.Local() {
		r.source = &local{url: u, opts: r.opts}
	} else {
		r.source = wire.NewClient(u, auth, r.opts)
	}
	return r, nil
}

// URL returns the address.
func (r *Remote) URL() URL { return r.url }

// Close closes idle connections. The Remote can still be used.
func (r *Remote) Close() error { return r.source.Close() }

// Resolution is the commit of a ref at one moment.
type Resolution struct {
	Ref    string // full name; "" if the caller asked for the id of a commit
	Commit plan.ID
}

// Resolve finds the commit of a ref. It costs one ref advertisement. The id of a commit costs nothing: Fetch finds out whether the
// repository has the commit.
func (r *Remote) Resolve(ctx context.Context, ref Ref) (Resolution, error) {
	if res, ok, err := resolveCommit(ref); ok || err != nil {
		return res, err
	}
	all, err := r.Refs(ctx)
	if err != nil {
		return Resolution{}, err
	}
	return all.Resolve(ref)
}

// resolveCommit resolves a ref that is the id of a commit.
func resolveCommit(ref Ref) (Resolution, bool, error) {
	if id, ok := ref.Commit(); ok {
		return Resolution{Commit: id}, true, nil
	}
	if ref.IsZero() {
		return Resolution{}, false, failure.New(v1alpha1.ReasonRefNotFound, "git.ref is empty: give a branch, a tag or a commit id")
	}
	return Resolution{}, false, nil
}
