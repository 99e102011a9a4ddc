package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A plan is a mass deletion if it deletes more than massFiles files and more than massPercent of the owned files. massDeletion
// also holds some plans that delete fewer.
const (
	massFiles   = 20
	massPercent = 30
)

// heldPaths is the maximum number of paths in Held.Paths.
const heldPaths = 10

// settleDirs decides about paths at which git has a file and the gateway has a directory. The file can replace the directory only if
// this plan deletes every file in the directory. Otherwise the conflict policy decides.
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
		case plan.GitWins:
			return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory there "+
				"with files that the agent does not own (%s): move these files", dir, foreign)
		case plan.Hold:
			p.hold(dir)
		case plan.GatewayWins:
			p.changes.List[i].Op = plan.Keep
		}
	}
	return nil
}

// foreignIn returns the first file below dir that this plan does not delete, or "".
func (p *planner) foreignIn(dir string) (string, error) {
	for f, err := range p.State.Walk(dir) {
		if err != nil {
			return "", fmt.Errorf("walk %s: %w", dir, err)
		}
		if i, ok := p.find(f.Path); !ok || p.changes.List[i].Op != plan.Delete {
			return f.Path, nil
		}
	}
	return "", nil
}

// settleBlocked returns an error if git has a directory where the gateway has a file, and this plan does not delete the file.
func (p *planner) settleBlocked() error {
	for _, file := range slices.Sorted(maps.Keys(p.blocked)) {
		if i, ok := p.find(file); !ok || p.changes.List[i].Op != plan.Delete {
			return blockedBy(file, p.blocked[file])
		}
	}
	return nil
}

// holdForApproval holds a mass deletion and a plan with conflicts until an operator decides.
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

// hold records a conflict for which the conflict policy holds the plan.
func (p *planner) hold(path string) {
	if p.conflicts == nil {
		p.conflicts = map[string]bool{}
	}
	p.conflicts[path] = true
}

// heldConflicts returns a Held that lists the recorded conflicts, or nil if there are none.
func (p *planner) heldConflicts() *plan.Held {
	if len(p.conflicts) == 0 {
		return nil
	}
	paths := slices.Sorted(maps.Keys(p.conflicts))
	return &plan.Held{
		Reason: v1alpha1.ReasonConflictDetected,
		Message: fmt.Sprintf("%s changed both on the gateway and in git (%s), and conflictPolicy is hold: "+
			"choose one version, or set another conflictPolicy", files(len(p.conflicts)), plan.Enumerate(paths, heldPaths)),
		Paths: slices.Clone(paths[:min(len(paths), heldPaths)]),
	}
}

// massDeletion returns a Held if the plan deletes a large part of the owned files, a whole project, the project.json of a project,
// or files because the commit lost the source of their mapping. So renaming a folder in git does not empty a gateway. Without its
// project.json, the gateway no longer treats a directory as a project.
func (p *planner) massDeletion() (*plan.Held, error) {
	deleted := 0
	var first, projects, withoutFile []string // withoutFile are projects that lose only their project.json
	for i := range p.changes.List {
		c := &p.changes.List[i]
		if c.Op != plan.Delete {
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
				withoutFile = append(withoutFile, project)
			} else {
				projects = append(projects, project)
			}
		}
	}
	many := deleted > massFiles && deleted*100 > p.owned*massPercent
	lost := p.lostSources()
	if !many && len(projects) == 0 && len(withoutFile) == 0 && len(lost) == 0 {
		return nil, nil
	}
	if p.AllowMassDeletion {
		return nil, nil
	}
	details := ""
	if len(lost) > 0 {
		details = ", because the commit no longer has " + plan.Enumerate(lost, heldPaths) +
			" (if you renamed it, correct the mapping)"
	}
	if len(projects) > 0 {
		details += ", including all of " + plural(len(projects), "project") + " " +
			plan.Enumerate(projects, heldPaths)
	}
	if len(withoutFile) > 0 {
		details += ", including the project.json of " + plan.Enumerate(withoutFile, heldPaths) +
			" (the gateway ignores a project without it)"
	}
	return &plan.Held{
		Reason: v1alpha1.ReasonMassDeletion,
		Message: fmt.Sprintf("%s would be deleted (the agent owns %d)%s; to approve this, run stoker sync NAME --confirm-deletion=%s",
			files(deleted), p.owned, details, p.To.Short()),
		Paths: first,
	}, nil
}

// countOrphan counts an owned file if the commit no longer has the source of the mapping that it came from.
func (p *planner) countOrphan(rec plan.Owned) {
	if int(rec.Origin) >= len(p.header.Mappings) {
		return
	}
	from := p.header.Mappings[rec.Origin]
	for _, m := range p.Desired.Missing() {
		if string(m.Source) == from.Source && string(m.Destination) == from.Destination {
			if p.orphans == nil {
				p.orphans = map[string]int{}
			}
			p.orphans[from.Source]++
		}
	}
}

// lostSources returns the sources that the commit no longer has and that more than one file came from. A folder that was renamed in
// git is such a source.
func (p *planner) lostSources() []string {
	var gone []string
	for source, n := range p.orphans {
		if n > 1 {
			gone = append(gone, source)
		}
	}
	slices.Sort(gone)
	return gone
}

// projectFile returns the name of the project if path is its project.json.
func projectFile(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, "projects/")
	if !ok {
		return "", false
	}
	name, file, _ := strings.Cut(rest, "/")
	return name, file == "project.json"
}

// wanted reports whether git has any file for dir.
func (p *planner) wanted(dir string) (bool, error) {
	for _, err := range p.Desired.Paths(dir) {
		return err == nil, err
	}
	return false, nil
}

func files(n int) string { return strconv.Itoa(n) + " " + plural(n, "file") }

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
