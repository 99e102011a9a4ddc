package lead

import (
	"context"
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// Time limits of one poll, including the proof that a commit belongs to an allowed ref.
const (
	maxLook     = 5 * time.Minute
	maxDownload = 30 * time.Minute // of a registry: the commit of an artifact follows from its layer
)

// pollLimit returns the time limit of a poll of a repository, and the error of one that takes longer.
func pollLimit(address string) (time.Duration, error) {
	if syntax.IsRegistry(address) {
		return maxDownload, failure.New(v1alpha1.ReasonGitTimeout, "the layer did not arrive within %s; trying again", maxDownload)
	}
	return maxLook, failure.New(v1alpha1.ReasonGitTimeout, "git did not answer within %s; trying again", maxLook)
}

// pollResult is the result of a poll.
type pollResult struct {
	question question
	// specCommit is the commit of spec.git.ref, if the request depends on it.
	specCommit string
	desired    string // the ref that was resolved
	name       string // its full name, "" for a commit
	commit     string
	wanted     string // the commit that the request names, if any
	refused    string // the value for status.request if the ref resolves to another commit
	err        error
	took       time.Duration
	abandoned  bool // it was canceled, because another ref is desired
}

// poller polls git.
type poller struct {
	connect func(*v1alpha1.GatewaySync) (*repo.Remote, error)
	store   *repo.Store

	git            string // spec.git of the remote
	remote         *repo.Remote
	allowedCommits map[string]bool // commits found in allowed refs
}

// poll resolves the desired ref of gs for all gateways with one ref advertisement.
func (p *poller) poll(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
	started := time.Now()
	limit, late := pollLimit(gs.Spec.Git.Repo)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	f := pollResult{question: q}
	f.err = p.ask(ctx, gs, &f)
	if f.err != nil && ctx.Err() != nil {
		f.err = context.Cause(ctx)
	}
	f.took = time.Since(started)
	return f
}

func (p *poller) ask(ctx context.Context, gs *v1alpha1.GatewaySync, f *pollResult) error {
	want, err := desiredref.Of(gs, "")
	if err != nil {
		return err
	}
	if want.RefusedCommit != "" && !want.ResolveSpec {
		f.desired = want.Ref
		return want.CheckCommit(want.RefusedCommit)
	}
	if err := p.connectTo(gs); err != nil {
		return err
	}
	all, err := p.remote.Refs(ctx)
	if err != nil {
		return err
	}
	want, f.specCommit, err = desiredref.Resolve(gs, all.Commit)
	if err != nil {
		return err
	}
	f.desired, f.wanted = want.Ref, want.Commit
	if want.RefusedCommit != "" {
		return want.CheckCommit(want.RefusedCommit)
	}
	at, err := resolve(all, want.Ref)
	if err != nil {
		return err
	}
	if err := want.CheckCommit(at.Commit.String()); err != nil {
		f.refused = want.Refuse(at.Commit.String())
		return err
	}
	f.name, f.commit = at.Ref, at.Commit.String()
	if want.Override {
		return p.checkAllowed(ctx, gs, all, at)
	}
	return nil
}

func resolve(all *repo.Refs, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return all.Resolve(ref)
}

// connectTo creates the remote, and replaces it if spec.git changed.
func (p *poller) connectTo(gs *v1alpha1.GatewaySync) error {
	git := gitOf(gs)
	if p.remote != nil && p.git == git {
		return nil
	}
	p.close()
	remote, err := p.connect(gs)
	if err != nil {
		return err
	}
	p.git, p.remote, p.allowedCommits = git, remote, map[string]bool{}
	return nil
}

func (p *poller) close() {
	if p.remote != nil {
		_ = p.remote.Close() // closes idle connections
		p.remote = nil
	}
}

// gitOf returns spec.git as one text, for comparison.
func gitOf(gs *v1alpha1.GatewaySync) string {
	b, err := json.Marshal(gs.Spec.Git)
	if err != nil {
		return "" // impossible: it was decoded from JSON
	}
	return string(b)
}

// checkAllowed checks a request against spec.git.allowedRefs. It remembers the commits that it found in them.
func (p *poller) checkAllowed(ctx context.Context, gs *v1alpha1.GatewaySync, all *repo.Refs, at repo.Resolution) error {
	commit := at.Commit.String()
	if at.Ref == "" && p.allowedCommits[commit] {
		return nil
	}
	if err := all.CheckAllowed(ctx, p.store, p.remote, gs.Spec.Git.RequestableRefs(), at); err != nil {
		return err
	}
	if at.Ref == "" {
		if len(p.allowedCommits) > 1000 {
			clear(p.allowedCommits)
		}
		p.allowedCommits[commit] = true
	}
	return nil
}
