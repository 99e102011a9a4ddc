package source

import (
	"context"
	"path"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// tree is a folder of a commit.
type tree struct {
	entries []plan.Entry
	index   map[string]int // by name; nil until the first lookup
}

// walker returns a walker that fails when ctx is done.
func (c *Commit) walker(ctx context.Context, excludes []string, build bool) (*walker, error) {
	root, err := c.store.RootTree(c.ID)
	return &walker{ctx: ctx, commit: c, root: root, trees: map[plan.ID]*tree{}, build: build, excludes: excludes, remaining: manifest.MaxBytes}, err
}

func (w *walker) tree(id plan.ID) (*tree, error) {
	if w.ctx.Err() != nil {
		return nil, context.Cause(w.ctx)
	}
	if t := w.trees[id]; t != nil {
		return t, nil
	}
	entries, err := w.commit.store.Tree(id)
	if err != nil {
		return nil, err
	}
	if w.entries += len(entries); w.entries > maxEntries {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the folders that lead to the manifests, and those with them, have more than %d entries: use smaller folders", maxEntries)
	}
	w.trees[id] = &tree{entries: entries}
	return w.trees[id], nil
}

// find returns the entry of a name.
func (t *tree) find(name string) (plan.Entry, bool) {
	if t.index == nil {
		t.index = make(map[string]int, len(t.entries))
		for i, e := range t.entries {
			t.index[e.Name] = i
		}
	}
	i, found := t.index[name]
	if !found {
		return plan.Entry{}, false
	}
	return t.entries[i], true
}

// Stat implements builder.Tree.
func (w *walker) Stat(p string) (builder.Kind, error) {
	switch e, err := w.find(p); {
	case failure.Is(err, v1alpha1.ReasonSourceMissing):
		return builder.Nothing, nil
	case err != nil:
		return builder.Nothing, err
	case e.Mode == plan.Directory:
		return builder.Folder, nil
	}
	return builder.File, nil
}

// List implements chart.Tree.
func (w *walker) List(folder string) ([]string, error) {
	e, err := w.find(folder)
	if err != nil {
		return nil, err
	}
	var list []string
	return list, w.list(folder, e.ID, 0, &list)
}

// list adds all files below a folder.
func (w *walker) list(dir string, tree plan.ID, depth int, list *[]string) error {
	entries, err := w.enter(dir, tree, depth)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name)
		switch err := checkMode(p, e); {
		case err != nil:
			return err
		case e.Mode == plan.Directory:
			if err := w.list(p, e.ID, depth+1, list); err != nil {
				return err
			}
		default:
			if err := w.countFile(dir); err != nil {
				return err
			}
			*list = append(*list, p)
		}
	}
	return nil
}

// Fetch implements builder.Tree and chart.Tree.
func (w *walker) Fetch(ctx context.Context, paths []string) (map[string][]byte, error) {
	var list []sourceFile
	var ids []plan.ID
	for _, p := range paths {
		e, err := w.find(p)
		if err != nil {
			return nil, err
		}
		list, ids = append(list, sourceFile{path: p, id: e.ID}), append(ids, e.ID)
	}
	if _, err := w.commit.store.FetchBlobs(ctx, ids); err != nil {
		return nil, err
	}
	contents := make(map[string][]byte, len(list))
	for _, f := range list {
		var err error
		if contents[f.path], err = w.content(f); err != nil {
			return nil, err
		}
	}
	return contents, nil
}
