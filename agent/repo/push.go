package repo

import (
	"context"
	"net/http"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// IsStale reports whether a Push failed because the branch no longer had the old value. The caller reads the refs again.
func IsStale(err error) bool { return wire.IsStale(err) }

// PushRefs asks for all refs as the server shows them to a client that pushes. It fails with AuthFailed if the credentials may not
// push and the server says so before a push.
func (r *Remote) PushRefs(ctx context.Context) (*Refs, error) {
	all, err := r.source.PushRefs(ctx)
	if err != nil {
		return nil, err
	}
	return &Refs{r.url, all}, nil
}

// Push moves a branch, by its full name, from one commit to another. A zero from creates the branch, and a zero to deletes it. pack has the
// objects that the server lacks; it is empty if there are none. If the branch has the commit to already, Push does nothing.
//
// The server changes the branch only if it still has the commit from. Otherwise IsStale reports true for the error. An error with the
// reason PushRejected has the words of the server. After any other error the outcome may be unknown, and the caller can push again.
func (r *Remote) Push(ctx context.Context, branch string, from, to plan.ID, pack []byte) error {
	return r.source.Push(ctx, branch, from, to, pack)
}

// CommitText returns the bytes of a commit that is the tip of a ref. The commit does not get into the store.
func (s *Store) CommitText(ctx context.Context, r *Remote, commit plan.ID) ([]byte, error) {
	if err := s.looking.lock(ctx); err != nil {
		return nil, err
	}
	defer s.looking.unlock()
	t, err := s.packs.Begin(commit)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return r.source.CommitText(ctx, t)
}

// APIToken returns the token for the API of the forge: that of the GitHub App, or else that of Auth. It fails with AuthFailed if
// there is only an ssh key.
func (r *Remote) APIToken(ctx context.Context) (secret.String, error) { return r.source.APIToken(ctx) }

// APITransport returns a transport for requests to the forge's API: with the proxy and the certificates of the Remote, without credentials.
func (r *Remote) APITransport() http.RoundTripper {
	if c, ok := r.source.(*wire.Client); ok {
		return c.APITransport()
	}
	return http.DefaultTransport
}

// CommitText implements source.
func (l *local) CommitText(context.Context, *store.Transfer) ([]byte, error) {
	return nil, l.readOnly()
}

// PushRefs implements source.
func (l *local) PushRefs(context.Context) (*wire.Refs, error) { return nil, l.readOnly() }

// Push implements source.
func (l *local) Push(context.Context, string, plan.ID, plan.ID, []byte) error { return l.readOnly() }

// APIToken implements source.
func (l *local) APIToken(context.Context) (secret.String, error) {
	return secret.String{}, l.readOnly()
}

func (l *local) readOnly() error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository,
		"%s is a directory, and a repository in a directory receives no proposals: use an https:// or ssh:// address in git.repo", l.url)
}
