package create

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// The names of the files and folders that this package looks for.
const (
	projectFile    = "project.json"
	modeFile       = "config-mode.json"
	attributesFile = ".gitattributes"
	projectsDir    = "projects"
	configDir      = "config"
	resourcesDir   = "resources"
	udtsDir        = "udts"
	platform       = "ignition" // the module id of the platform
	collectionsDir = configDir + "/" + resourcesDir
	// typesDir is the destination of the folder udts. It is the same in a GatewaySync without profiles (stoker.io/service-path).
	typesDir = collectionsDir + "/core/" + platform + "/tag-type-definition/" + v1alpha1.DefaultTagProvider
)

// base is a folder with what a gateway gets: projects, configuration, or both.
type base struct {
	dir   *dir
	units []*unit
}

// unit is a folder or file of a base that has a place in the data directory.
type unit struct {
	rel  string // relative to the base; "." for the base itself
	dest string // in the data directory
	dir  *dir   // nil for a file

	projects    []project
	collections []collection
	stray       []string // patterns of what is in the folder and does not belong on a gateway
}

// project is a folder with a project of Ignition.
type project struct {
	dir         *dir
	name        string // on the gateway
	inheritable bool
}

// collection is a folder with configuration of Ignition, such as config/resources/core.
type collection struct {
	dir  *dir
	name string
}

func (u *unit) source(b *base) string { return path.Join(cmp.Or(b.dir.path, "."), u.rel) }

// has reports whether the base has a unit for which is returns true.
func (b *base) has(is func(*unit) bool) bool { return slices.ContainsFunc(b.units, is) }

func (u *unit) hasProjects() bool { return len(u.projects) > 0 }

func (u *unit) hasConfig() bool { return !u.hasProjects() }

// finder recognizes Ignition's folders.
type finder struct {
	source   Source
	project  string // name of a project in the root
	bases    map[string]*base
	warnings []string
}

func (f *finder) warn(format string, args ...any) {
	f.warnings = append(f.warnings, fmt.Sprintf(format, args...))
}

// find returns the bases, sorted by path.
func (f *finder) find(top *dir) ([]*base, error) {
	f.bases = map[string]*base{}
	marks, err := f.prefetch(top)
	if err != nil {
		return nil, err
	}
	// The folders of projects and of collections, in the order of the walk.
	var projectDirs, collectionDirs []*dir
	projects, collections := map[*dir][]project{}, map[*dir][]collection{}
	top.walk(func(d *dir) bool {
		if err != nil || !marks[d] {
			return false
		}
		var isProject bool
		var p project
		if p, isProject, err = f.asProject(d); isProject {
			if len(projects[d.parent]) == 0 {
				projectDirs = append(projectDirs, d.parent)
			}
			projects[d.parent] = append(projects[d.parent], p)
			return false
		}
		if c, ok := asCollection(d); ok {
			if len(collections[d.parent]) == 0 {
				collectionDirs = append(collectionDirs, d.parent)
			}
			collections[d.parent] = append(collections[d.parent], c)
			return false
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, d := range projectDirs {
		f.addProjects(d, projects[d])
	}
	for _, d := range collectionDirs {
		f.addCollections(d, collections[d])
	}
	f.addTypes()
	return slices.SortedFunc(maps.Values(f.bases), func(a, b *base) int { return strings.Compare(a.dir.path, b.dir.path) }), nil
}

// prefetch fetches the files that identify projects and collections. It returns the directories with them or with a collection, and
// those above.
func (f *finder) prefetch(top *dir) (map[*dir]bool, error) {
	var ids []plan.ID
	marks := map[*dir]bool{}
	top.walk(func(d *dir) bool {
		marked := false
		for _, name := range []string{projectFile, modeFile} {
			if e, ok := d.file(name); ok {
				ids, marked = append(ids, e.ID), true
			}
		}
		if _, ok := asCollection(d); ok || marked {
			for up := d; up != nil && !marks[up]; up = up.parent {
				marks[up] = true
			}
		}
		return true
	})
	if len(ids) > maxBlobs {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the commit has more than %d files %s and %s: name a folder of a clone with --dir", maxBlobs, projectFile, modeFile)
	}
	return marks, f.source.Prefetch(ids)
}

// asProject returns the project of a directory, if it is one. Other tools have files of that name, too.
func (f *finder) asProject(d *dir) (p project, ok bool, err error) {
	e, ok := d.file(projectFile)
	if !ok {
		return p, false, nil
	}
	var head struct {
		Title, Parent        *string
		Enabled, Inheritable *bool
	}
	valid, err := readJSON(f.source, e.ID, &head)
	if err != nil {
		return p, false, fmt.Errorf("read %s: %w", shown(path.Join(d.path, projectFile)), err)
	}
	p = project{dir: d, name: d.name, inheritable: head.Inheritable != nil && *head.Inheritable}
	switch {
	case valid && (head.Title != nil || head.Parent != nil || head.Enabled != nil || head.Inheritable != nil):
		return p, true, nil
	case !valid && slices.ContainsFunc(d.dirs, isModule):
		f.warn("%s is not a valid project.json, so a gateway ignores the project: correct it", shown(path.Join(d.path, projectFile)))
		return p, true, nil
	}
	return p, false, nil
}

// isModule reports whether a directory has the resources of a module: its name is the module's id.
func isModule(d *dir) bool {
	return d.name == platform || strings.Contains(d.name, ".") && len(d.dirs) > 0
}

// asCollection returns the collection of a directory, if it is one.
func asCollection(d *dir) (collection, bool) {
	_, marked := d.file(modeFile)
	if d.parent == nil || !marked && (d.parent.name != resourcesDir || !slices.ContainsFunc(d.dirs, isModule)) {
		return collection{}, false
	}
	if _, isProject := d.file(projectFile); isProject {
		return collection{}, false
	}
	return collection{dir: d, name: d.name}, true
}

// addCollections adds the collections of a folder d: as one unit for all if d is config/resources or another folder resources.
func (f *finder) addCollections(d *dir, list []collection) {
	for _, c := range list {
		if _, marked := c.dir.file(modeFile); c.name == "external" && !marked {
			f.warn("%s has no %s, without which a gateway does not start: add the file", shown(c.dir.path), modeFile)
		}
	}
	list = slices.DeleteFunc(list, func(c collection) bool { return c.name == "local" }) // inspect reports it
	if len(list) == 0 {
		return
	}
	config := d.parent
	switch {
	case d.name == resourcesDir && config != nil && config.parent != nil && isNamed(config, configDir):
		f.add(config.parent, &unit{rel: config.name, dest: configDir, dir: config, collections: list})
	case d.name == resourcesDir && config != nil:
		f.add(config, &unit{rel: d.name, dest: collectionsDir, dir: d, collections: list})
	default:
		for _, c := range list {
			f.add(d, &unit{rel: c.name, dest: collectionsDir + "/" + c.name, dir: c.dir, collections: []collection{c}})
		}
	}
}

// maxStray is the number of other files up to which a folder of projects is mapped as a whole without them. If there are more, or another
// folder, each project is mapped. For a project that is the root of the repository, maxStray counts other folders, too; if there are more,
// project.json and the folder of each module are mapped. It also bounds the names with a dot at their start that are excluded.
const maxStray = 8

// addProjects adds the projects of a folder. d is nil if the root of the tree that is read is a project.
func (f *finder) addProjects(d *dir, list []project) {
	if d == nil {
		p := list[0]
		p.name = f.project
		f.addRootProject(p)
		return
	}
	if d.parent != nil && isNamed(d, "project") {
		f.add(d.parent, &unit{rel: d.name, dest: projectsDir, dir: d, projects: list})
		return
	}
	var stray []string
	for _, name := range d.names() {
		if !slices.ContainsFunc(list, func(p project) bool { return p.name+"/" == name }) {
			stray = append(stray, projectsDir+"/"+name)
		}
	}
	otherDirs := len(d.dirs) > len(list)
	if !otherDirs && len(stray) <= maxStray {
		f.add(d, &unit{rel: ".", dest: projectsDir, dir: d, projects: list, stray: stray})
		return
	}
	for _, p := range list {
		f.add(d, &unit{rel: p.name, dest: projectsDir + "/" + p.name, dir: p.dir, projects: []project{p}})
	}
}

// addRootProject adds the project that is the root of the tree that is read, without what does not belong to a project.
func (f *finder) addRootProject(p project) {
	dest := projectsDir + "/" + p.name
	var stray []string
	for _, sub := range p.dir.dirs {
		if !isModule(sub) {
			stray = append(stray, dest+"/"+sub.name+"/")
		}
	}
	for _, e := range p.dir.files {
		if e.Name != projectFile {
			stray = append(stray, dest+"/"+e.Name)
		}
	}
	if len(stray) <= maxStray {
		f.add(p.dir, &unit{rel: ".", dest: dest, dir: p.dir, projects: []project{p}, stray: stray})
		return
	}
	f.add(p.dir, &unit{rel: projectFile, dest: dest + "/" + projectFile, projects: []project{p}})
	for _, sub := range p.dir.dirs {
		if isModule(sub) {
			f.add(p.dir, &unit{rel: sub.name, dest: dest + "/" + sub.name, dir: sub, projects: []project{p}})
		}
	}
}

// addTypes adds the folders udts beside the projects and the configuration: see typesDir.
func (f *finder) addTypes() {
	for _, b := range f.bases {
		d := b.dir.child(udtsDir)
		if d == nil {
			continue
		}
		found := false
		d.walk(func(sub *dir) bool {
			_, has := sub.file("udts.json")
			found = found || has
			return !found
		})
		if found {
			f.add(b.dir, &unit{rel: udtsDir, dest: typesDir, dir: d})
		}
	}
}

// add adds a unit to the base of a directory, unless its path cannot be written into a mapping.
func (f *finder) add(d *dir, u *unit) {
	source := path.Join(cmp.Or(d.path, "."), u.rel)
	switch problem := validation.PathProblem(source); {
	case problem != "":
		f.warn("%s is left out, because the path %s", shown(source), problem)
		return
	case !printable(source), !printable(u.dest):
		f.warn("%s is left out, because a name has a character that cannot be printed: rename it", shown(source))
		return
	case strings.Contains(source, "{{"), strings.Contains(u.dest, "{{"):
		f.warn("%s is left out, because a mapping is a template: rename the folder to one without {{", shown(source))
		return
	case resource.NeverTouch(u.dest):
		return // inspect reports it
	}
	b := f.bases[d.path]
	if b == nil {
		b = &base{dir: d}
		f.bases[d.path] = b
	}
	b.units = append(b.units, u)
}

// isNamed reports whether a folder's name contains what, in upper or lower case.
func isNamed(d *dir, what string) bool { return strings.Contains(strings.ToLower(d.name), what) }
