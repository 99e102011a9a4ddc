package lead

import (
	"context"
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxLook bounds one look at git, with whatever it takes to prove that a commit belongs to an allowed ref.
const maxLook = 5 * time.Minute

// found is what a look at git brought.
type found struct {
	of question
	// specCommit is what spec.git.ref resolves to, where the request depends on it.
	specCommit string
	desired    string // the ref that was resolved
	name       string // its full name, "" for a commit
	commit     string
	wanted     string // the commit that the request names, if any
	refused    string // what status.request is to say, if the ref stands at another commit
	err        error
	took       time.Duration
}

// looker looks at git.
type looker struct {
	connect func(*v1alpha1.GatewaySync) (*repo.Remote, error)
	store   *repo.Store

	git    string // spec.git of the remote
	remote *repo.Remote
	proven map[string]bool // commits that were found behind allowed refs, by spec.git and commit
}

// look resolves the desired ref of gs, for all gateways with one advertisement.
func (l *looker) look(ctx context.Context, gs *v1alpha1.GatewaySync, q question) found {
	started := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, maxLook, failure.New(v1alpha1.ReasonGitTimeout, "git did not answer within %s; trying again", maxLook))
	defer cancel()
	f := found{of: q}
	f.err = l.answer(ctx, gs, &f)
	if f.err != nil && ctx.Err() != nil {
		f.err = context.Cause(ctx)
	}
	f.took = time.Since(started)
	return f
}

func (l *looker) answer(ctx context.Context, gs *v1alpha1.GatewaySync, f *found) error {
	want, err := v1alpha1.DesiredRef(gs, "")
	if err != nil {
		return err
	}
	if want.Stood != "" && !want.ResolveSpec {
		f.desired = want.Ref
		return want.CheckCommit(want.Stood)
	}
	if err := l.reach(gs); err != nil {
		return err
	}
	all, err := l.remote.Refs(ctx)
	if err != nil {
		return err
	}
	if want.ResolveSpec {
		// Where spec.git.ref is gone nobody knows, and the request stays in force.
		if at, err := resolve(all, gs.Spec.Git.Ref); err == nil {
			f.specCommit = at.Commit.String()
			if want, err = v1alpha1.DesiredRef(gs, f.specCommit); err != nil {
				return err
			}
		}
	}
	f.desired, f.wanted = want.Ref, want.Commit
	if want.Stood != "" {
		return want.CheckCommit(want.Stood)
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
		return l.allowed(ctx, gs, all, at)
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

// reach makes the way to the repository, anew where spec.git changed.
func (l *looker) reach(gs *v1alpha1.GatewaySync) error {
	git := gitOf(gs)
	if l.remote != nil && l.git == git {
		return nil
	}
	l.close()
	remote, err := l.connect(gs)
	if err != nil {
		return err
	}
	l.git, l.remote, l.proven = git, remote, map[string]bool{}
	return nil
}

func (l *looker) close() {
	if l.remote != nil {
		_ = l.remote.Close() // idle connections
		l.remote = nil
	}
}

// gitOf is all of spec.git in one text, to be compared.
func gitOf(gs *v1alpha1.GatewaySync) string {
	b, err := json.Marshal(gs.Spec.Git)
	if err != nil {
		return "" // cannot be: it was JSON
	}
	return string(b)
}

// allowed holds a request to spec.git.allowedRefs. That a commit is behind one of them is found out once.
func (l *looker) allowed(ctx context.Context, gs *v1alpha1.GatewaySync, all *repo.Refs, at repo.Resolution) error {
	commit := at.Commit.String()
	if at.Ref == "" && l.proven[commit] {
		return nil
	}
	if err := all.Allowed(ctx, l.store, l.remote, gs.Spec.Git.RequestableRefs(), at); err != nil {
		return err
	}
	if at.Ref == "" {
		if len(l.proven) > 1000 {
			clear(l.proven)
		}
		l.proven[commit] = true
	}
	return nil
}
