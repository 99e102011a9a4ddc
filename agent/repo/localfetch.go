package repo

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Refs returns all refs. It reads the repository again at each call.
func (l *local) Refs(ctx context.Context) (*wire.Refs, error) {
	common, st, err := l.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	all, err := l.read(ctx, st)
	if err == nil {
		err = l.peel(ctx, common, all)
	}
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return all, nil
}

// read lists the refs. Symbolic refs other than HEAD are left out.
func (l *local) read(ctx context.Context, st *filesystem.Storage) (*wire.Refs, error) {
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

// peel fills in the objects that annotated tags point to. A tag that cannot be followed is left out.
func (l *local) peel(ctx context.Context, common string, all *wire.Refs) error {
	var o *store.Objects
	for name, id := range all.ByName {
		if !strings.HasPrefix(name, wire.TagPrefix) {
			continue
		}
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
		to, err := o.Peel(id)
		if err != nil {
			l.opts.Log.Debug("tag cannot be followed", "tag", name, "error", err)
		} else if to != id {
			all.Peeled[name] = to
		}
	}
	return nil
}

// Fetch copies the commit, its trees and its blobs into a new pack. It leaves out what the store already has.
func (l *local) Fetch(ctx context.Context, t *store.Transfer, _ string) (*store.Received, error) {
	return l.Blobs(ctx, t, nil)
}

// Blobs copies the blobs with these ids into a new pack. If ids is empty, it copies the commit with its trees and blobs.
func (l *local) Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.Total)
	defer cancel()
	from, err := l.objects(ctx, t.Limits(), t.Scratch)
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

// Reaches reports whether the commit of t is one of tips or of their ancestors. It walks the history as far as the repository
// has it: a shallow clone ends it early. A search that visits too many commits fails with RefNotAllowed.
func (l *local) Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error) {
	from, err := l.objects(ctx, t.Limits(), nil)
	if err != nil {
		return false, err
	}
	defer from.Close()
	seen := map[plan.ID]bool{}
	open := slices.Clone(tips)
	for n := 0; len(open) > 0; n++ {
		if ctx.Err() != nil {
			return false, wire.Explain(ctx, l.url, ctx.Err(), nil)
		}
		if n > wire.HistoryDepths[len(wire.HistoryDepths)-1] {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"commit %s is not among %d commits of the allowed refs of %s: ask for a branch or a tag", t.Commit, n, l.url)
		}
		id := open[0]
		open = open[1:]
		if id, err = from.Peel(id); err == nil && id == t.Commit {
			return true, nil
		}
		var up []plan.ID
		if err == nil {
			up, err = from.Parents(id)
		}
		if store.IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			continue // the end of a shallow clone; GitUnreachable means that an alternate is missing
		}
		if err != nil {
			return false, l.explain(ctx, err)
		}
		for _, p := range up {
			if !seen[p] {
				seen[p] = true
				open = append(open, p)
			}
		}
	}
	return false, nil
}

// TagText returns the bytes of the annotated tag whose id is t.Commit. It does not need the commit that the tag points to.
func (l *local) TagText(ctx context.Context, t *store.Transfer, _ plan.ID) ([]byte, error) {
	from, err := l.objects(ctx, t.Limits(), nil)
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

// objects opens the objects of the repository.
func (l *local) objects(ctx context.Context, limits Limits, scratch func() (*os.File, error)) (*store.Objects, error) {
	common, st, err := l.open()
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
