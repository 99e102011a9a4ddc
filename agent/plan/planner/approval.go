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

// A plan is a mass deletion if it deletes more than massFiles files and more than massPercent of the owned files.
// findMassDeletion also finds some plans that delete fewer.
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
		foreign, err := p.remainingFile(dir)
		if err != nil {
			return err
		}
		if foreign == "" {
			continue
		}
		switch p.conflictPolicy(dir) {
		case plan.GitWins:
			return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory there "+
				"with files that the agent does not own (%s): move these files", dir, foreign)
		case plan.Hold:
			p.conflicts[dir] = true
		case plan.GatewayWins:
			p.find(dir).Op = plan.Keep
		}
	}
	return nil
}

// remainingFile returns the first file below dir that this plan does not delete, or "".
func (p *planner) remainingFile(dir string) (string, error) {
	for f, err := range p.State.Walk(dir) {
		if err != nil {
			return "", fmt.Errorf("walk %s: %w", dir, err)
		}
		if !p.deletes(f.Path) {
			return f.Path, nil
		}
	}
	return "", nil
}

// settleBlocked returns an error if git has a directory where the gateway has a file, and this plan does not delete the file.
func (p *planner) settleBlocked() error {
	for _, file := range slices.Sorted(maps.Keys(p.parents.blocked)) {
		if !p.deletes(file) {
			return errBlocked(file, p.parents.blocked[file])
		}
	}
	return nil
}

// holdForApproval holds a mass deletion and a plan with conflicts until an operator decides.
func (p *planner) holdForApproval() error {
	held := heldConflicts(p.conflicts)
	if !p.AllowMassDeletion {
		mass, err := p.findMassDeletion()
		if err != nil {
			return err
		}
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
		Message: fmt.Sprintf("%s changed both on the gateway and in git (%s), and conflictPolicy is hold: "+
			"choose one version, or set another conflictPolicy", files(len(conflicts)), plan.Enumerate(paths, heldPaths)),
		Paths: slices.Clone(paths[:min(len(paths), heldPaths)]),
	}
}

// massDeletion is what a mass deletion deletes.
type massDeletion struct {
	files    int
	paths    []string // the first heldPaths of them
	projects []string // projects that go away completely
	// withoutFile are projects that lose only their project.json. Then the gateway no longer treats the directory as a project.
	withoutFile []string
	sources     []string // sources of mappings that the commit lost
}

// findMassDeletion returns a Held if the plan deletes a large part of the owned files, a whole project, the project.json of a project,
// or files because the commit lost the source of their mapping. So renaming a folder in git does not empty a gateway.
func (p *planner) findMassDeletion() (*plan.Held, error) {
	d := massDeletion{sources: p.lostSources()}
	for i := range p.list {
		c := &p.list[i]
		if c.Op != plan.Delete {
			continue
		}
		if d.files++; len(d.paths) < heldPaths {
			d.paths = append(d.paths, c.Path)
		}
		project, ok := projectOf(c.Path)
		if !ok {
			continue
		}
		wanted, err := p.wantsAny("projects/" + project)
		switch {
		case err != nil:
			return nil, err
		case wanted:
			d.withoutFile = append(d.withoutFile, project)
		default:
			d.projects = append(d.projects, project)
		}
	}
	many := d.files > massFiles && d.files*100 > p.owned*massPercent
	if !many && len(d.projects) == 0 && len(d.withoutFile) == 0 && len(d.sources) == 0 {
		return nil, nil
	}
	return &plan.Held{
		Reason: v1alpha1.ReasonMassDeletion,
		Message: fmt.Sprintf("%s would be deleted (the agent owns %d)%s; to approve this, run stoker sync NAME --confirm-deletion=%s",
			files(d.files), p.owned, d.details(), p.To.Short()),
		Paths: d.paths,
	}, nil
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

// lostSources returns the sources that the commit no longer has and that more than one file came from. A folder that was renamed in
// git is such a source.
func (p *planner) lostSources() []string {
	var lost []string
	for source, n := range p.orphans {
		if n > 1 {
			lost = append(lost, source)
		}
	}
	slices.Sort(lost)
	return lost
}

// projectOf returns the name of the project whose project.json is at path.
func projectOf(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, "projects/")
	if !ok {
		return "", false
	}
	name, file, _ := strings.Cut(rest, "/")
	return name, file == "project.json"
}

// wantsAny reports whether git has any file for dir.
func (p *planner) wantsAny(dir string) (bool, error) {
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
