package simulator

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// tree is a snapshot of the resources below one directory, by <module>/<type>[/<name>…].
type tree struct {
	dir       string
	resources map[string]*resource
}

// problem is something that a scan could not load. Its previously loaded version stays.
type problem struct {
	dir string
	err error
}

func (p problem) String() string { return fmt.Sprintf("could not load %s: %v", p.dir, p.err) }

// loadTree reads all resources below dir. It keeps the old version of a resource that it cannot read.
func loadTree(root *os.Root, dir string, old *tree) (*tree, []problem) {
	t := &tree{dir: dir, resources: map[string]*resource{}}
	var problems []problem
	err := fs.WalkDir(root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			problems = append(problems, problem{name, err})
			return nil //nolint:nilerr // it is recorded, and the other directories can still be read
		}
		if d.IsDir() {
			if name != dir && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() != resourceFile && d.Name() != unaryFile {
			return nil
		}
		parent := path.Dir(name)
		rel := strings.TrimPrefix(strings.TrimPrefix(parent, dir), "/")
		if strings.Count(rel, "/") < 1 {
			return nil // nothing above <module>/<type> is a resource
		}
		r, err := loadResource(root, parent, d.Name(), rel)
		if err != nil {
			problems = append(problems, problem{parent, err})
			if old == nil || old.resources[rel] == nil {
				return nil
			}
			r = old.resources[rel]
		}
		t.resources[rel] = r
		return nil
	})
	if err != nil {
		problems = append(problems, problem{dir, err})
	}
	return t, problems
}

// keepUnchanged restores the loaded version of resources whose signed resource.json did not change.
func (t *tree) keepUnchanged(old *tree) {
	for name, r := range t.resources {
		was := old.resources[name]
		if was != nil && r.storedSignature() != "" && string(ordered.Compact(r.doc)) == string(ordered.Compact(was.doc)) {
			t.resources[name] = was
		}
	}
}

// names lists the resource paths at and below a prefix, sorted; "" lists all.
func (t *tree) names(prefix string) []string {
	var names []string
	for name := range t.resources {
		if prefix == "" || name == prefix || strings.HasPrefix(name, prefix+"/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// project is a loaded project.
type project struct {
	name, title, description, parent string
	enabled, inheritable             bool
	tree                             *tree
}

// loadProjects reads data/projects. A directory without project.json is not a project; if project.json is invalid, the
// loaded project stays.
func loadProjects(root *os.Root, old map[string]*project) (map[string]*project, []problem) {
	loaded := map[string]*project{}
	list, err := datadir.List(root, datadir.ProjectsDir)
	if err != nil {
		return old, []problem{{datadir.ProjectsDir, err}}
	}
	var problems []problem
	for _, d := range list {
		name := d.Name()
		if !d.IsDir() || strings.HasPrefix(name, ".") {
			continue
		}
		p, err := loadProject(root, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			problems = append(problems, problem{path.Join(datadir.ProjectsDir, name), err})
			if old[name] != nil {
				loaded[name] = old[name]
			}
			continue
		}
		var before *tree
		if old[name] != nil {
			before = old[name].tree
		}
		var broken []problem
		p.tree, broken = loadTree(root, path.Join(datadir.ProjectsDir, name), before)
		problems = append(problems, broken...)
		loaded[name] = p
	}
	return loaded, problems
}

func loadProject(root *os.Root, name string) (*project, error) {
	raw, err := datadir.Read(root, path.Join(datadir.ProjectsDir, name, "project.json"))
	if err != nil {
		return nil, err
	}
	v, err := ordered.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("project.json: %w", err)
	}
	doc, ok := v.(ordered.Object)
	if !ok {
		return nil, errors.New("project.json is no JSON object")
	}
	p := &project{name: name, enabled: true}
	for key, target := range map[string]*string{"title": &p.title, "description": &p.description, "parent": &p.parent} {
		*target, _ = ordered.Dig(doc, key).(string)
	}
	for key, target := range map[string]*bool{"enabled": &p.enabled, "inheritable": &p.inheritable} {
		if v, ok := doc.Get(key); ok {
			*target, _ = v.(bool)
		}
	}
	return p, nil
}

// invalidParent reports whether the chain of parents is broken: a parent is missing, not inheritable, or repeated.
func invalidParent(projects map[string]*project, p *project) bool {
	visited := map[string]bool{p.name: true}
	for parent := p.parent; parent != ""; parent = projects[parent].parent {
		if visited[parent] || projects[parent] == nil || !projects[parent].inheritable {
			return true
		}
		visited[parent] = true
	}
	return false
}

// collection is one directory of config/resources.
type collection struct {
	name               string
	title, description string
	parent             string
	enabled, declared  bool // declared: it has a config-mode.json
	tree               *tree
}

// config is the loaded configuration; later collections win.
type config []*collection

// loadConfig reads the active collections: external, core, the active mode, local.
func loadConfig(root *os.Root, mode string, old config) (config, []problem) {
	var problems []problem
	names := []string{"external", "core"}
	if mode != "" {
		names = append(names, mode)
	}
	names = append(names, "local")
	loaded := make(config, 0, len(names))
	for _, name := range names {
		c, broken := loadCollection(root, name, old.collection(name))
		problems = append(problems, broken...)
		loaded = append(loaded, c)
	}
	return loaded, problems
}

func loadCollection(root *os.Root, name string, old *collection) (*collection, []problem) {
	dir := path.Join(datadir.ResourcesDir, name)
	c := &collection{name: name, enabled: true}
	var before *tree
	if old != nil {
		before = old.tree
	}
	if !datadir.Exists(root, dir) {
		c.tree = &tree{dir: dir, resources: map[string]*resource{}}
		return c, nil
	}
	var problems []problem
	raw, err := datadir.Read(root, path.Join(dir, "config-mode.json"))
	if err == nil {
		var v ordered.Value
		if v, err = ordered.Parse(raw); err == nil {
			c.declared = true
			for key, target := range map[string]*string{"title": &c.title, "description": &c.description, "parent": &c.parent} {
				*target, _ = ordered.Dig(v, key).(string)
			}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		problems = append(problems, problem{dir, fmt.Errorf("config-mode.json: %w", err)})
	}
	var broken []problem
	c.tree, broken = loadTree(root, dir, before)
	return c, append(problems, broken...)
}

func (c config) collection(name string) *collection {
	for _, col := range c {
		if col.name == name {
			return col
		}
	}
	return nil
}

// effective returns the resource that wins, its collection, and all collections that define it. r is nil if none does.
func (c config) effective(resourcePath string) (r *resource, collection string, definedIn []string) {
	for _, col := range c {
		if found := col.tree.resources[resourcePath]; found != nil {
			r, collection = found, col.name
			definedIn = append(definedIn, col.name)
		}
	}
	return r, collection, definedIn
}

// names lists the resource paths of <module>/<type> in all collections, sorted.
func (c config) names(prefix string) []string {
	all := map[string]bool{}
	for _, col := range c {
		for _, name := range col.tree.names(prefix) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// with returns the configuration with one resource of a collection replaced.
func (c config) with(name string, r *resource) config {
	next := slices.Clone(c)
	for i, col := range next {
		if col.name == name {
			changed := *col
			changed.tree = col.tree.with(r)
			next[i] = &changed
		}
	}
	return next
}

// with returns a copy with one resource added or replaced.
func (t *tree) with(r *resource) *tree {
	next := &tree{dir: t.dir, resources: maps.Clone(t.resources)}
	next.resources[r.path] = r
	return next
}
