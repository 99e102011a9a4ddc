package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A plan is a mass deletion if it deletes more than massFiles files and more than massPercent of the owned ones.
const (
	massFiles   = 20
	massPercent = 30
)

// heldPaths bounds Held.Paths.
const heldPaths = 10

// settleDirs checks the directories that stand in place of a desired file: this plan must delete every file in them.
func (p *planner) settleDirs() error {
	for _, dir := range p.dirs {
		foreign, err := p.foreignIn(dir)
		if err != nil {
			return err
		}
		if foreign == "" {
			continue
		}
		i, _ := p.find(dir)
		switch p.policy(dir) {
		case GitWins:
			return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory there "+
				"with files that the agent does not own (%s): move them away", dir, foreign)
		case Hold:
			p.hold(dir)
		case GatewayWins:
			p.changes.List[i].Op = Keep
		}
	}
	return nil
}

// foreignIn returns a path below dir that this plan does not delete, or "".
func (p *planner) foreignIn(dir string) (string, error) {
	for f, err := range p.State.Walk(dir) {
		if err != nil {
			return "", fmt.Errorf("walk %s: %w", dir, err)
		}
		if i, ok := p.find(f.Path); !ok || p.changes.List[i].Op != Delete {
			return f.Path, nil
		}
	}
	return "", nil
}

// settleBlocked checks that this plan deletes the files that stand in place of needed directories.
func (p *planner) settleBlocked() error {
	for _, at := range slices.Sorted(maps.Keys(p.blocked)) {
		if i, ok := p.find(at); !ok || p.changes.List[i].Op != Delete {
			return blockedBy(at, p.blocked[at])
		}
	}
	return nil
}

// holdForApproval holds a plan that an operator should approve first.
func (p *planner) holdForApproval() error {
	mass, err := p.massDeletion()
	if err != nil {
		return err
	}
	conflicts := p.heldConflicts()
	switch {
	case mass != nil && conflicts != nil:
		mass.Message += "; also, " + conflicts.Message
		p.changes.Held = mass
	case mass != nil:
		p.changes.Held = mass
	default:
		p.changes.Held = conflicts
	}
	return nil
}

func (p *planner) hold(path string) {
	if p.conflicts == nil {
		p.conflicts = map[string]bool{}
	}
	p.conflicts[path] = true
}

func (p *planner) heldConflicts() *Held {
	if len(p.conflicts) == 0 {
		return nil
	}
	paths := slices.Sorted(maps.Keys(p.conflicts))
	paths = slices.Clone(paths[:min(len(paths), heldPaths)])
	return &Held{
		Reason: v1alpha1.ReasonConflictDetected,
		Message: fmt.Sprintf("%s changed both on the gateway and in git (%s), and conflictPolicy is hold: "+
			"choose one version, or set another conflictPolicy", files(len(p.conflicts)), some(paths, len(p.conflicts))),
		Paths: paths,
	}
}

// massDeletion returns a Held for a plan that would delete a whole project or a large part of the owned files: renaming
// a folder in git must not empty a plant. A project without its project.json counts, too, because the gateway no longer
// treats its directory as a project.
func (p *planner) massDeletion() (*Held, error) {
	deleted, first, projects, headless := 0, []string(nil), []string(nil), []string(nil)
	for i := range p.changes.List {
		c := &p.changes.List[i]
		if c.Op != Delete {
			continue
		}
		if deleted++; len(first) < heldPaths {
			first = append(first, c.Path)
		}
		if project, ok := projectFile(c.Path); ok {
			left, err := p.wanted("projects/" + project)
			if err != nil {
				return nil, err
			}
			if left {
				headless = append(headless, project)
			} else {
				projects = append(projects, project)
			}
		}
	}
	many := deleted > massFiles && deleted*100 > p.owned*massPercent
	moved := p.movedSources()
	if !many && len(projects) == 0 && len(headless) == 0 && len(moved) == 0 {
		return nil, nil
	}
	if p.AllowMassDeletion {
		return nil, nil
	}
	what := ""
	if len(moved) > 0 {
		what = ", because the commit has no " + some(moved[:min(len(moved), heldPaths)], len(moved)) + " any more (renamed? correct the mapping)"
	}
	if len(projects) > 0 {
		what += ", with them the whole of " + plural(len(projects), "project") + " " +
			some(projects[:min(len(projects), heldPaths)], len(projects))
	}
	if len(headless) > 0 {
		what += ", with them the project.json, without which the gateway does not know a project, of " +
			some(headless[:min(len(headless), heldPaths)], len(headless))
	}
	return &Held{
		Reason: v1alpha1.ReasonMassDeletion,
		Message: fmt.Sprintf("%s would be deleted (%d are ours)%s: to approve it, run stoker sync NAME --confirm-deletion=%s",
			files(deleted), p.owned, what, p.To.Short()),
		Paths: first,
	}, nil
}

// countOrphan counts a file that is deleted because the commit no longer has the source of its mapping.
func (p *planner) countOrphan(rec Owned) {
	if int(rec.Origin) >= len(p.header.Mappings) {
		return
	}
	from := p.header.Mappings[rec.Origin]
	for _, m := range p.Desired.missing {
		if string(m.Source) == from.Source && string(m.Destination) == from.Destination {
			if p.orphans == nil {
				p.orphans = map[string]int{}
			}
			p.orphans[from.Source]++
		}
	}
}

// movedSources returns the lost sources that brought more than one file, such as a folder that was renamed in git.
func (p *planner) movedSources() []string {
	var gone []string
	for source, n := range p.orphans {
		if n > 1 {
			gone = append(gone, source)
		}
	}
	slices.Sort(gone)
	return gone
}

// projectFile returns the project whose project.json is at path.
func projectFile(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, "projects/")
	if !ok {
		return "", false
	}
	name, file, _ := strings.Cut(rest, "/")
	return name, file == "project.json"
}

// wanted reports whether git wants any file below dir.
func (p *planner) wanted(dir string) (bool, error) {
	for _, err := range p.Desired.gitBelow(dir) {
		return err == nil, err
	}
	return false, nil
}
