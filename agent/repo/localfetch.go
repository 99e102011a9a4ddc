package repo

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Refs implements source.
func (l *local) Refs(ctx context.Context) (*wire.Refs, error) {
	common, st, err := l.openRepository()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	all, err := l.readRefs(ctx, st)
	if err == nil {
		err = l.peel(ctx, common, all)
	}
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return all, nil
}

// readRefs reads the refs, without symbolic refs other than HEAD.
func (l *local) readRefs(ctx context.Context, st *filesystem.Storage) (*wire.Refs, error) {
	all := &wire.Refs{ByName: map[string]plan.ID{}, Peeled: map[string]plan.ID{}}
	iter, err := st.IterReferences()
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	err = iter.ForEach(func(r *plumbing.Reference) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(all.ByName) >= l.opts.MaxRefs {
			return store.OverLimit("%s has more than %d refs", l.url, l.opts.MaxRefs)
		}
		name := r.Name()
		if r.Type() == plumbing.SymbolicReference {
			if name == plumbing.HEAD {
				all.Head = r.Target().String()
			}
			return nil
		}
		all.ByName[name.String()] = plan.ID(r.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if id, ok := all.ByName[all.Head]; ok {
		all.ByName[wire.HeadName] = id
	}
	return all, nil
}

// peel sets Peeled. It leaves out refs that it cannot follow. Branches, too, may point to a tag object.
func (l *local) peel(ctx context.Context, common string, all *wire.Refs) error {
	var o *store.Objects
	for name, id := range all.ByName {
		if err := ctx.Err(); err != nil {
			return err
		}
		if o == nil {
			var err error
			if o, err = store.OpenObjects(ctx, filepath.Join(common, "objects"), Limits{}, nil); err != nil {
				return l.unreadable(err)
			}
			defer o.Close()
		}
		target, err := o.Peel(id)
		if err != nil {
			l.opts.Log.Debug("ref cannot be followed", "ref", name, "error", err)
		} else if target != id {
			all.Peeled[name] = target
		}
	}
	return nil
}

// Fetch implements source. The pack leaves out what the store already has.
func (l *local) Fetch(ctx context.Context, t *store.Transfer, _ string) (*store.Received, error) {
	return l.Blobs(ctx, t, nil)
}

// Blobs copies the blobs with these ids into a new pack. If ids is empty, it copies the commit with its trees and blobs.
func (l *local) Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.Total)
	defer cancel()
	from, err := l.openObjects(ctx, t.Limits(), t.Scratch)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	if err := from.Has(t.Commit); err != nil {
		if store.IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			return nil, failure.New(v1alpha1.ReasonRefNotFound, "%s does not have commit %s", l.url, t.Commit)
		}
		return nil, l.explain(ctx, err)
	}
	in, err := t.Copy(ctx, from, ids)
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return in, nil
}

// Reaches implements source. It walks the history that the repository has; a shallow clone has only the newest part. If it visits
// too many commits, it fails with RefNotAllowed.
func (l *local) Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error) {
	objects, err := l.openObjects(ctx, t.Limits(), nil)
	if err != nil {
		return false, err
	}
	defer objects.Close()
	seen := map[plan.ID]bool{}
	pending := slices.Clone(tips)
	for n := 0; len(pending) > 0; n++ {
		if ctx.Err() != nil {
			return false, wire.Explain(ctx, l.url, ctx.Err(), nil)
		}
		if n > wire.HistoryDepths[len(wire.HistoryDepths)-1] {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"commit %s is not among %d commits of the allowed refs of %s: ask for a branch or a tag", t.Commit, n, l.url)
		}
		id := pending[0]
		pending = pending[1:]
		if id, err = objects.Peel(id); err == nil && id == t.Commit {
			return true, nil
		}
		var parents []plan.ID
		if err == nil {
			parents, err = objects.Parents(id)
		}
		if store.IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			continue // the end of a shallow clone; GitUnreachable would mean that an alternate is missing
		}
		if err != nil {
			return false, l.explain(ctx, err)
		}
		for _, p := range parents {
			if !seen[p] {
				seen[p] = true
				pending = append(pending, p)
			}
		}
	}
	return false, nil
}

// TagText implements source. Here t.Commit is the id of the tag object. The last parameter, a commit that the store has, is unused.
func (l *local) TagText(ctx context.Context, t *store.Transfer, _ plan.ID) ([]byte, error) {
	from, err := l.openObjects(ctx, t.Limits(), nil)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	text, err := from.Tag(t.Commit)
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return text, nil
}

// openObjects opens the objects of the repository. The caller must close them.
func (l *local) openObjects(ctx context.Context, limits Limits, scratch func() (*os.File, error)) (*store.Objects, error) {
	common, st, err := l.openRepository()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	o, err := store.OpenObjects(ctx, filepath.Join(common, "objects"), limits, scratch)
	if err != nil {
		return nil, l.unreadable(err)
	}
	return o, nil
}

// CommitText implements source.
func (l *local) CommitText(context.Context, *store.Transfer) ([]byte, error) {
	return nil, l.readOnly()
}

// PushRefs implements source.
func (l *local) PushRefs(context.Context) (*wire.Refs, error) { return nil, l.readOnly() }

// Push implements source.
func (l *local) Push(context.Context, string, plan.ID, plan.ID, [][]byte) error { return l.readOnly() }

// APIToken implements source.
func (l *local) APIToken(context.Context) (secret.String, error) {
	return secret.String{}, l.readOnly()
}

// readOnly is the error of requests that a directory does not support.
func (l *local) readOnly() error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository,
		"%s is a directory, and proposals need a git server: use an https:// or ssh:// address in git.repo", l.url)
}
