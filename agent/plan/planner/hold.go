package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
)

// A plan is a mass deletion if it deletes more than massFiles files and more than massPercent of the owned files.
// massDeletion.held also holds some plans that delete fewer.
const (
	massFiles   = 20
	massPercent = 30
)

// massDeletion is what a plan deletes, and why an operator may have to approve it.
type massDeletion struct {
	files    int
	paths    []string // the first heldPaths of them
	projects []string // projects of which git has no file anymore
	// withoutFile are projects that lose their project.json but keep other files. The gateway no longer treats such a directory as a project.
	withoutFile []string
	sources     []string // sources of mappings that the commit lost
}

// findMassDeletion returns what the changes of a plan delete. sources are those that the commit lost, and tree is the desired tree.
func findMassDeletion(changes []plan.Change, sources []string, tree *desired.Tree) (massDeletion, error) {
	d := massDeletion{sources: sources}
	inGit := make(map[string]bool) // by project
	for i := range changes {
		c := &changes[i]
		if c.Op != plan.Delete {
			continue
		}
		if d.files++; len(d.paths) < heldPaths {
			d.paths = append(d.paths, c.Path)
		}
		project, file, ok := inProject(c.Path)
		if !ok {
			continue
		}
		wanted, known := inGit[project]
		if !known {
			var err error
			if wanted, err = hasFiles(tree, "projects/"+project); err != nil {
				return massDeletion{}, err
			}
			if inGit[project] = wanted; !wanted {
				d.projects = append(d.projects, project)
			}
		}
		if wanted && file == "project.json" {
			d.withoutFile = append(d.withoutFile, project)
		}
	}
	return d, nil
}

// held returns a Held if the plan deletes a large part of the owned files, a whole project, the project.json of a project, or files
// because the commit lost the source of their mapping. So renaming a folder in git does not empty a gateway.
func (d *massDeletion) held(owned int) *plan.Held {
	many := d.files > massFiles && d.files*100 > owned*massPercent
	if !many && len(d.projects) == 0 && len(d.withoutFile) == 0 && len(d.sources) == 0 {
		return nil
	}
	return &plan.Held{
		Reason:  v1alpha1.ReasonMassDeletion,
		Message: fmt.Sprintf("%s would be deleted (the agent owns %d)%s", files(d.files), owned, d.details()),
		Paths:   d.paths,
	}
}

// details says what the deletion includes, for a message.
func (d *massDeletion) details() string {
	var text string
	if len(d.sources) > 0 {
		text = ", because the commit no longer has " + plan.Enumerate(d.sources, heldPaths) + " (if you renamed it, correct the mapping)"
	}
	if len(d.projects) > 0 {
		text += ", including all of " + plural(len(d.projects), "project") + " " + plan.Enumerate(d.projects, heldPaths)
	}
	if len(d.withoutFile) > 0 {
		text += ", including the project.json of " + plan.Enumerate(d.withoutFile, heldPaths) + " (the gateway ignores a project without it)"
	}
	return text
}

// lostSources are the sources that the commit no longer has: source → owned files that came from it.
type lostSources map[string][]string

// add adds an owned file that came from the mapping o, if missing has the mapping.
func (s lostSources) add(path string, o plan.Origin, missing []plan.Mapping) {
	for _, m := range missing {
		if m.Origin().SameMapping(o) {
			s[string(m.Source)] = append(s[string(m.Source)], path)
		}
	}
}

// folders returns the sources that more than one file came from and of which a file is deleted. A folder that was renamed in git is such a
// source.
func (s lostSources) folders(deletes func(path string) bool) []string {
	var folders []string
	for source, paths := range s {
		if len(paths) > 1 && slices.ContainsFunc(paths, deletes) {
			folders = append(folders, source)
		}
	}
	slices.Sort(folders)
	return folders
}

// inProject splits the path of a file in a project into the name of the project and the path in it.
func inProject(path string) (project, file string, ok bool) {
	rest, ok := strings.CutPrefix(path, "projects/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// hasFiles reports whether git has any file for dir.
func hasFiles(tree *desired.Tree, dir string) (bool, error) {
	for _, err := range tree.Paths(dir) {
		return err == nil, err
	}
	return false, nil
}

// heldPaths is the maximum number of paths in Held.Paths, and of names of one kind in its message.
const heldPaths = 10

// holdForApproval holds a mass deletion and a plan with conflicts until an operator decides.
func (p *planner) holdForApproval() error {
	held := heldConflicts(p.conflicts)
	if !p.AllowMassDeletion {
		deletion, err := findMassDeletion(p.list, p.lost.folders(p.deletes), p.Desired)
		if err != nil {
			return err
		}
		mass := deletion.held(p.owned)
		if mass != nil && held != nil {
			mass.Message += "; also, " + held.Message
		}
		if mass != nil {
			held = mass
		}
	}
	p.changes.Held = held
	return nil
}

// heldConflicts returns a Held that lists the conflicts, or nil if there are none.
func heldConflicts(conflicts map[string]bool) *plan.Held {
	if len(conflicts) == 0 {
		return nil
	}
	paths := slices.Sorted(maps.Keys(conflicts))
	return &plan.Held{
		Reason: v1alpha1.ReasonConflictDetected,
		Message: fmt.Sprintf("the gateway and git have different versions of %s (%s), and conflictPolicy is hold: "+
			"choose one version, or set another conflictPolicy", files(len(conflicts)), plan.Enumerate(paths, heldPaths)),
		Paths: slices.Clone(paths[:min(len(paths), heldPaths)]),
	}
}

func files(n int) string { return strconv.Itoa(n) + " " + plural(n, "file") }

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
