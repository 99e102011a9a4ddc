package source

import (
	"context"
	"path"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/failure"
)

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
