package repo

import (
	"context"
	"errors"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// smart is a repository behind a server that speaks git's protocol, version 0, over some wire.
type smart struct {
	url  URL
	opts RemoteOptions
	wire wire
	last advertised[*advert]
}

// wire carries git's protocol to a server. What it learns goes to the exchange: an error that is noted there counts more
// than the returned one.
type wire interface {
	// advertise asks for all refs; an empty repository has none.
	advertise(ctx context.Context, x *exchange) (*advert, error)
	// upload sends one request and returns the answer, positioned where the pack starts.
	upload(ctx context.Context, x *exchange, a *advert, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	// close lets go of what is kept between two uses.
	close() error
}

// advert is an advertisement of refs.
type advert struct {
	caps *capability.List
	refs *refs
	// session is the one of http, which remembers where a redirect led to.
	session transport.UploadPackSession
}

func (w *smart) refs(ctx context.Context) (*refs, error) {
	ctx, dog, stop := watch(ctx, w.opts.Advertise, w.opts.StallBytes, w.opts.StallWindow)
	defer stop()
	a, err := w.advertise(ctx, dog)
	if err != nil {
		return nil, err
	}
	w.last.put(a)
	return a.refs, nil
}

func (w *smart) close() error { return w.wire.close() }

// advertised is the last advertisement, or else a new one.
func (w *smart) advertised(ctx context.Context, dog *watchdog) (*advert, error) {
	if a, ok := w.last.take(); ok {
		return a, nil
	}
	return w.advertise(ctx, dog)
}

// advertise asks for all refs.
func (w *smart) advertise(ctx context.Context, dog *watchdog) (*advert, error) {
	x := &exchange{dog: dog}
	a, err := w.wire.advertise(ctx, x)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err != nil {
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s: %w", w.url, foreign(refused, secrets))
		}
		return nil, explain(ctx, w.url, err, secrets)
	}
	if n := len(a.refs.byName) + len(a.refs.peeled); n > w.opts.MaxRefs {
		return nil, overLimit("%s has %d refs, more than %d", w.url, n, w.opts.MaxRefs)
	}
	return a, nil
}

// readRefs takes over go-git's maps.
func readRefs(a *packp.AdvRefs) *refs {
	r := &refs{byName: make(map[string]plan.ID, len(a.References)+1), peeled: make(map[string]plan.ID, len(a.Peeled))}
	for name, id := range a.References {
		r.byName[name] = plan.ID(id)
	}
	for name, id := range a.Peeled {
		r.peeled[name] = plan.ID(id)
	}
	if a.Head != nil {
		r.byName[headName] = plan.ID(*a.Head)
	}
	for _, s := range a.Capabilities.Get(capability.SymRef) {
		if target, ok := strings.CutPrefix(s, headName+":"); ok {
			r.head = target
		}
	}
	return r
}
