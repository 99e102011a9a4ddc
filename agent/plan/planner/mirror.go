package planner

import (
	"fmt"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// mirror implements "prune: mirror": it plans to delete the regular files in mapped directories that are neither desired nor
// owned. They go to lost+found. It walks these directories on the disk, because a difference between commits does not show the
// files that the gateway added. So every sync with prune mirror costs a full walk, even if one file changed. A mapping whose
// source is missing is not mirrored.
func (p *planner) mirror() error {
	var deletions []plan.Change
	for _, dir := range p.mirrors {
		list, err := p.mirrorDir(dir)
		if err != nil {
			return err
		}
		deletions = append(deletions, list...)
	}
	p.insert(deletions)
	return nil
}

// mirrored reports whether prune mirror deletes a file at path that git does not have.
func (p *planner) mirrored(path string) bool {
	return !p.proposed(path) && slices.ContainsFunc(p.mirrors, func(dir string) bool { return relpath.Below(path, dir) })
}

// mirrorDir returns the deletions in one directory. It leaves files that are proposed to git.
func (p *planner) mirrorDir(dir string) ([]plan.Change, error) {
	var files []plan.Found
	for f, err := range p.Desired.UnwantedIn(dir, p.Manifest, p.State) {
		if err != nil {
			return nil, err
		}
		if f.Stat, err = p.State.Stat(f.Path); err != nil {
			return nil, fmt.Errorf("stat %s: %w", f.Path, err)
		}
		if f.Stat.Kind == plan.File { // still there
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	files, err := p.respelled(dir, files)
	if err != nil {
		return nil, err
	}
	list := make([]plan.Change, 0, len(files))
	for _, f := range files {
		if p.proposed(f.Path) {
			continue
		}
		id, err := p.State.BlobID(f.Path)
		if err != nil {
			return nil, fmt.Errorf("hash %s: %w", f.Path, err)
		}
		list = append(list, plan.Change{Op: plan.Delete, Path: f.Path, Found: f.Stat, FoundID: id, Conflict: true})
	}
	return list, nil
}
