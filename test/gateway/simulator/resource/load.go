package resource

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

// Tree is a snapshot of the resources below one directory, by <module>/<type>[/<name>…].
type Tree struct {
	Dir       string
	Resources map[string]*Resource
}

// Problem is something that a scan could not load. Its previously loaded version stays.
type Problem struct {
	Dir string
	Err error
}

func (p Problem) String() string { return fmt.Sprintf("could not load %s: %v", p.Dir, p.Err) }

// LoadTree reads all resources below dir. It keeps the old version of a resource that it cannot read.
func LoadTree(root *os.Root, dir string, old *Tree) (*Tree, []Problem) {
	t := &Tree{Dir: dir, Resources: map[string]*Resource{}}
	var problems []Problem
	err := fs.WalkDir(root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			problems = append(problems, Problem{name, err})
			return nil //nolint:nilerr // it is recorded, and the other directories can still be read
		}
		if d.IsDir() {
			if name != dir && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() != File && d.Name() != UnaryFile {
			return nil
		}
		parent := path.Dir(name)
		rel := strings.TrimPrefix(strings.TrimPrefix(parent, dir), "/")
		if strings.Count(rel, "/") < 1 {
			return nil // nothing above <module>/<type> is a resource
		}
		r, err := Load(root, parent, d.Name(), rel)
		if err != nil {
			problems = append(problems, Problem{parent, err})
			if old == nil || old.Resources[rel] == nil {
				return nil
			}
			r = old.Resources[rel]
		}
		t.Resources[rel] = r
		return nil
	})
	if err != nil {
		problems = append(problems, Problem{dir, err})
	}
	return t, problems
}

// KeepUnchanged restores the loaded version of resources whose signed resource.json did not change.
func (t *Tree) KeepUnchanged(old *Tree) {
	for name, r := range t.Resources {
		was := old.Resources[name]
		if was != nil && r.StoredSignature() != "" && string(ordered.Compact(r.Doc)) == string(ordered.Compact(was.Doc)) {
			t.Resources[name] = was
		}
	}
}

// Names lists the resource paths at and below a prefix, sorted; "" lists all.
func (t *Tree) Names(prefix string) []string {
	var names []string
	for name := range t.Resources {
		if prefix == "" || name == prefix || strings.HasPrefix(name, prefix+"/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Project is a loaded project.
type Project struct {
	Name, Title, Description, Parent string
	Enabled, Inheritable             bool
	Tree                             *Tree
}

// LoadProjects reads the directory projects. A directory without project.json is not a project; if project.json is invalid, the
// loaded project stays.
func LoadProjects(root *os.Root, old map[string]*Project) (map[string]*Project, []Problem) {
	loaded := map[string]*Project{}
	list, err := datadir.List(root, datadir.ProjectsDir)
	if err != nil {
		return old, []Problem{{datadir.ProjectsDir, err}}
	}
	var problems []Problem
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
			problems = append(problems, Problem{path.Join(datadir.ProjectsDir, name), err})
			if old[name] != nil {
				loaded[name] = old[name]
			}
			continue
		}
		var before *Tree
		if old[name] != nil {
			before = old[name].Tree
		}
		var broken []Problem
		p.Tree, broken = LoadTree(root, path.Join(datadir.ProjectsDir, name), before)
		problems = append(problems, broken...)
		loaded[name] = p
	}
	return loaded, problems
}

func loadProject(root *os.Root, name string) (*Project, error) {
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
		return nil, errors.New("project.json is not a JSON object")
	}
	p := &Project{Name: name, Enabled: true}
	for key, target := range map[string]*string{"title": &p.Title, "description": &p.Description, "parent": &p.Parent} {
		*target, _ = ordered.Dig(doc, key).(string)
	}
	for key, target := range map[string]*bool{"enabled": &p.Enabled, "inheritable": &p.Inheritable} {
		if v, ok := doc.Get(key); ok {
			*target, _ = v.(bool)
		}
	}
	return p, nil
}

// InvalidParent reports whether the chain of parents is broken: a parent is missing, not inheritable, or repeated.
func InvalidParent(projects map[string]*Project, p *Project) bool {
	visited := map[string]bool{p.Name: true}
	for parent := p.Parent; parent != ""; parent = projects[parent].Parent {
		if visited[parent] || projects[parent] == nil || !projects[parent].Inheritable {
			return true
		}
		visited[parent] = true
	}
	return false
}

// Collection is one directory of config/resources.
type Collection struct {
	Name               string
	Title, Description string
	Declared           bool // it has a config-mode.json
	Tree               *Tree
}

// Config is the loaded configuration; later collections win.
type Config []*Collection

// LoadConfig reads the active collections: external, core, the active mode, local.
func LoadConfig(root *os.Root, mode string, old Config) (Config, []Problem) {
	var problems []Problem
	names := []string{"external", "core"}
	if mode != "" {
		names = append(names, mode)
	}
	names = append(names, "local")
	loaded := make(Config, 0, len(names))
	for _, name := range names {
		c, broken := loadCollection(root, name, old.Collection(name))
		problems = append(problems, broken...)
		loaded = append(loaded, c)
	}
	return loaded, problems
}

func loadCollection(root *os.Root, name string, old *Collection) (*Collection, []Problem) {
	dir := path.Join(datadir.ResourcesDir, name)
	c := &Collection{Name: name}
	var before *Tree
	if old != nil {
		before = old.Tree
	}
	if !datadir.Exists(root, dir) {
		c.Tree = &Tree{Dir: dir, Resources: map[string]*Resource{}}
		return c, nil
	}
	var problems []Problem
	raw, err := datadir.Read(root, path.Join(dir, "config-mode.json"))
	if err == nil {
		var v ordered.Value
		if v, err = ordered.Parse(raw); err == nil {
			c.Declared = true
			for key, target := range map[string]*string{"title": &c.Title, "description": &c.Description} {
				*target, _ = ordered.Dig(v, key).(string)
			}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		problems = append(problems, Problem{dir, fmt.Errorf("config-mode.json: %w", err)})
	}
	var broken []Problem
	c.Tree, broken = LoadTree(root, dir, before)
	return c, append(problems, broken...)
}

// Collection returns the collection of a name, or nil.
func (c Config) Collection(name string) *Collection {
	for _, col := range c {
		if col.Name == name {
			return col
		}
	}
	return nil
}

// Effective returns the resource that wins, its collection, and all collections that define it. r is nil if none does.
func (c Config) Effective(resourcePath string) (r *Resource, collection string, definedIn []string) {
	for _, col := range c {
		if found := col.Tree.Resources[resourcePath]; found != nil {
			r, collection = found, col.Name
			definedIn = append(definedIn, col.Name)
		}
	}
	return r, collection, definedIn
}

// Names lists the resource paths of <module>/<type> in all collections, sorted.
func (c Config) Names(prefix string) []string {
	all := map[string]bool{}
	for _, col := range c {
		for _, name := range col.Tree.Names(prefix) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// With returns the configuration with one resource of a collection replaced.
func (c Config) With(name string, r *Resource) Config {
	next := slices.Clone(c)
	for i, col := range next {
		if col.Name == name {
			changed := *col
			changed.Tree = col.Tree.With(r)
			next[i] = &changed
		}
	}
	return next
}

// With returns a copy with one resource added or replaced.
func (t *Tree) With(r *Resource) *Tree {
	next := &Tree{Dir: t.Dir, Resources: maps.Clone(t.Resources)}
	next.Resources[r.Path] = r
	return next
}
