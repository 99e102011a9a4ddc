// Package repo reads git repositories, and artifacts of registries as commits, and pushes branches, without a checkout, the git binary or a
// child process.
//
// A Remote resolves a Ref to a commit. On a git server, that takes one ref advertisement. A Store fetches commits and keeps them on
// disk. The store is a cache: if it is damaged or has grown too much, the next fetch replaces it.
//
// Package wire talks to git servers, package oci to registries, and package store keeps packs on disk. Callers use none of them directly.
package repo

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/oci"
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
	// HostKey is the key that an ssh server presents.
	HostKey = wire.HostKey
)

// ParseURL reads the address of a repository. An error never contains the address, which may have a password.
func ParseURL(s string) (URL, error) { return wire.ParseURL(s) }

// GetHostKey asks the server of an ssh address for its host key. It sends no credentials.
func GetHostKey(ctx context.Context, u URL, o RemoteOptions) (HostKey, error) {
	return wire.GetHostKey(ctx, u, o)
}

// CheckSSHKey returns nil if a private key can be used. An error never contains a part of the key.
func CheckSSHKey(key secret.String) error { return wire.CheckSSHKey(key) }

// Remote is a repository on a git server, in a registry or in a directory of this machine. Several goroutines may use it.
type Remote struct {
	url    URL
	opts   RemoteOptions
	source source
}

// source is the access to a repository: a wire.Client, a registry, or local.
type source interface {
	// Refs returns all refs. An empty repository has none, and a registry returns none.
	Refs(ctx context.Context) (*wire.Refs, error)
	// Fetch receives the commit of t, with its trees and, unless t.TreesOnly is set, its blobs, into a new pack. It clears t.Base if
	// the pack does not build on it. ref is the name by which the commit was found, "" if there is none.
	Fetch(ctx context.Context, t *store.Transfer, ref string) (*store.Received, error)
	// Blobs receives blobs of the commit of t into a new pack.
	Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error)
	// Reaches reports whether the commit of t is one of tips or one of their ancestors.
	Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error)
	// CommitText returns the bytes of the commit of t, the tip of a ref.
	CommitText(ctx context.Context, t *store.Transfer) ([]byte, error)
	// TagText returns the bytes of the annotated tag with the id t.Commit. It points to commit, which the store has.
	TagText(ctx context.Context, t *store.Transfer, commit plan.ID) ([]byte, error)
	// PushRefs returns all refs of the service that accepts pushes.
	PushRefs(ctx context.Context) (*wire.Refs, error)
	// Push moves a ref from oldID to newID, with the objects in pack, which is in pieces.
	Push(ctx context.Context, ref string, oldID, newID plan.ID, pack [][]byte) error
	// APIToken returns the token for the API of the forge.
	APIToken(ctx context.Context) (secret.String, error)
	// Close closes idle connections.
	Close() error
}

// NewRemote returns the Remote of u. It sends nothing yet. If auth has no credentials, the Remote uses those of the URL.
func NewRemote(u URL, auth Auth, o RemoteOptions) (*Remote, error) {
	if u.IsZero() {
		return nil, errors.New("no repository is set")
	}
	r := &Remote{url: u, opts: o.WithDefaults()}
	switch {
	case u.Local():
		r.source = &local{url: u, opts: r.opts}
	case u.Registry():
		if auth.Key != nil || auth.App != nil {
			return nil, failure.New(v1alpha1.ReasonAuthFailed, "git.repo is a registry, which takes only a token: set %s.token", cmp.Or(auth.Field, "git.auth"))
		}
		r.source = &registry{url: u, opts: r.opts, client: oci.NewClient(u, auth, r.opts)}
	default:
		r.source = wire.NewClient(u, auth, r.opts)
	}
	return r, nil
}

// URL returns the address of the repository.
func (r *Remote) URL() URL { return r.url }

// Close closes idle connections. The Remote can still be used.
func (r *Remote) Close() error { return r.source.Close() }

// Resolution is the commit of a ref at one moment.
type Resolution struct {
	Ref    string // full name, or the digest of an artifact; "" if the caller resolved a commit id
	Commit plan.ID
}

// Resolve finds the commit of a ref, with one ref advertisement or a request for the tag of a registry. For a commit id, it returns the
// id and sends nothing: Fetch finds out whether the repository has the commit.
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

// resolveCommit resolves a ref that is a commit id. It reports whether it is one, and fails for a zero Ref.
func resolveCommit(ref Ref) (Resolution, bool, error) {
	if id, ok := ref.Commit(); ok {
		return Resolution{Commit: id}, true, nil
	}
	if ref.IsZero() {
		return Resolution{}, false, failure.New(v1alpha1.ReasonRefNotFound, "git.ref is empty: set a branch, a tag or a commit id")
	}
	return Resolution{}, false, nil
}

// IsStale reports whether a Push failed because the branch no longer had the old value.
func IsStale(err error) bool { return wire.IsStale(err) }

// PushRefs requests all refs as the server shows them to a client that pushes. It fails with AuthFailed if the server already
// refuses the credentials here.
func (r *Remote) PushRefs(ctx context.Context) (*Refs, error) {
	all, err := r.source.PushRefs(ctx)
	if err != nil {
		return nil, err
	}
	return &Refs{url: r.url, advertised: all}, nil
}

// Push moves a branch, by its full name, from oldID to newID. A zero oldID creates the branch, and a zero newID deletes it. pack
// has the objects that the server lacks, in pieces; it may be empty. If the branch is newID already, Push does nothing.
//
// The server changes the branch only if it is still oldID. Otherwise IsStale holds for the error. An error with the reason
// PushRejected says why the branch was not changed. After any other error the outcome may be unknown, and the caller can push again.
func (r *Remote) Push(ctx context.Context, branch string, oldID, newID plan.ID, pack [][]byte) error {
	return r.source.Push(ctx, branch, oldID, newID, pack)
}

// CommitText returns the bytes of a commit that is the tip of a ref. It does not add the commit to the store.
func (s *Store) CommitText(ctx context.Context, r *Remote, commit plan.ID) ([]byte, error) {
	if err := s.searching.lock(ctx); err != nil {
		return nil, err
	}
	defer s.searching.unlock()
	t, err := s.Begin(commit)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return r.source.CommitText(ctx, t)
}

// APIToken returns the token for the API of the forge: the token of the GitHub App, or Auth.Token if there is no app. It fails
// with AuthFailed if there is neither, and with UnsupportedRepository for a registry and for a directory of this machine.
func (r *Remote) APIToken(ctx context.Context) (secret.String, error) { return r.source.APIToken(ctx) }

// APITransport returns a transport for requests to the API of the forge. It uses the proxy and the certificates of the Remote,
// and adds no credentials. It is nil for a registry and for a directory of this machine.
func (r *Remote) APITransport() http.RoundTripper {
	if c, ok := r.source.(*wire.Client); ok {
		return c.APITransport()
	}
	return nil
}
