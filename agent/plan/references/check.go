package references

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/internal/suggest"
)

// Disk is what the data directory has beside the commit. Paths are relative to the data directory.
type Disk struct {
	// Exists reports whether a file exists, or may exist.
	Exists func(path string) bool
	// Read returns a file of at most limit bytes. ok is false if it cannot be read.
	Read func(path string, limit int64) (content []byte, ok bool)
	// Files yields the paths of the files below a folder.
	Files func(dir string) iter.Seq[string]
	// Collections are the names of folders in config/resources. If the list is empty, the gateway keeps its configuration elsewhere, and only
	// its projects are known.
	Collections []string
}

// Result is the outcome of a check.
type Result struct {
	Findings []Finding // at most MaxFindings, by file
	// Known counts the findings that the commit before had, too. They are not in Findings.
	Known int
	// More counts the new findings over MaxFindings.
	More int
	// Found has all findings, new and known, for the check of the next commit.
	Found map[Found]bool
}

// MaxFindings is the maximum number of findings in a Result.
const MaxFindings = 50

// Found identifies a finding, wherever it is in the commit.
type Found struct {
	Name
	Problem
}

// Check returns the names in the files of x that neither x nor the disk has, and the parents that a project must not have. before has the
// findings of the commit that is on the disk, which are only counted.
//
// If disk is nil, nothing is known of the gateway. Then a name counts as missing only if the commit defines others of its kind, because
// those are kept in git.
func (x *Index) Check(before map[Found]bool, disk *Disk) Result {
	r := Result{Found: map[Found]bool{}}
	var list []Finding
	c := x.newCheck(disk)
	for found, f := range c.run() {
		if r.Found[found] = true; before[found] {
			r.Known++
			continue
		}
		list = append(list, *f)
	}
	slices.SortFunc(list, compare)
	r.More = max(0, len(list)-MaxFindings)
	r.Findings = list[:len(list)-r.More]
	for i := range r.Findings {
		f := &r.Findings[i]
		for _, near := range suggest.Names(f.Name, c.candidates(f)) {
			if f.Nearest == "" && near != f.Name {
				f.Nearest = near
			}
		}
	}
	return r
}

// check is the state of one Check.
type check struct {
	index    *Index
	disk     *Disk
	known    map[Name]bool                // whether a name exists, or may exist
	projects map[string]*project          // of the disk; nil for none
	children map[string][]string          // project → the projects of the commit that inherit from it
	types    map[string]map[string]bool   // path of a udts.json of the disk → its types, see typesIn
	spelled  map[string]map[string]string // folder of the disk → path in lower case → path
}

func (x *Index) newCheck(disk *Disk) *check {
	c := &check{
		index: x, disk: disk, known: map[Name]bool{}, projects: map[string]*project{}, children: map[string][]string{},
		types: map[string]map[string]bool{}, spelled: map[string]map[string]string{},
	}
	for name, p := range x.projects {
		if p.parent != "" {
			c.children[p.parent] = append(c.children[p.parent], name)
		}
	}
	return c
}

// run returns all findings. It leaves in x.open only the files that the next check must look up again.
func (c *check) run() map[Found]*Finding {
	all := map[Found]*Finding{}
	record := func(found Found, f Finding) {
		old := all[found]
		switch {
		case old == nil:
			all[found] = &f
		case compare(f, *old) < 0:
			f.Others = old.Others + 1
			*old = f
		default:
			old.Others++
		}
	}
	x := c.index
	if x.all {
		for path := range x.files {
			x.open[path] = true
		}
		x.all = false
	}
	for path := range x.open {
		f, settled := x.files[path], true
		for _, n := range f.names {
			if x.settles(n.Name) {
				continue
			}
			settled = false
			if !c.exists(n.Name) {
				record(Found{n.key(), Missing}, Finding{File: path, Pointer: n.pointer, Kind: n.Kind, Name: n.Name.Name, In: n.Scope, Problem: Missing})
			}
		}
		if f.project != nil && f.project.parent != "" {
			settled = false
			if problem := c.parentProblem(projectOf(path), f.project.parent); problem != "" {
				record(Found{Name{Project, "", f.project.parent}, problem},
					Finding{File: path, Pointer: "/parent", Kind: Project, Name: f.project.parent, Problem: problem})
			}
		}
		if settled {
			delete(x.open, path)
		}
	}
	return all
}

// exists reports whether a name exists, or may exist.
func (c *check) exists(n Name) bool {
	known, ok := c.known[n]
	if !ok {
		known = c.index.defined[n.key()] > 0 || c.find(n)
		c.known[n] = known
	}
	return known
}

// find looks up a name that the project or the tag provider itself does not have in the commit.
func (c *check) find(n Name) bool {
	switch n.Kind {
	case View, NamedQuery:
		return c.findInProject(n)
	case UDTType:
		return c.findType(n)
	}
	if !c.hasConfig() { // a gateway itself makes some things that are named default
		return n.Name == "default" || c.index.scopes[Name{Kind: n.Kind}] == 0
	}
	return slices.ContainsFunc(c.disk.Collections, func(collection string) bool {
		dir := "config/resources/" + collection + "/ignition/" + typeOf(n.Kind)
		return c.disk.Exists(c.spelling(dir, dir+"/"+n.Name+"/"+resourceFile))
	})
}

// spelling returns the path of a file below dir on the disk that differs from path only in case, as Name.key does; path if there is none.
func (c *check) spelling(dir, path string) string {
	if c.disk.Exists(path) {
		return path
	}
	paths, ok := c.spelled[dir]
	if !ok {
		paths = map[string]string{}
		for file := range c.disk.Files(dir) {
			paths[strings.ToLower(file)] = file
		}
		c.spelled[dir] = paths
	}
	return cmp.Or(paths[strings.ToLower(path)], path)
}

// hasConfig reports whether the configuration of the gateway is known.
func (c *check) hasConfig() bool { return c.disk != nil && len(c.disk.Collections) > 0 }

// typeOf returns the type of config resources of a kind.
func typeOf(kind Kind) string {
	for typ, k := range configTypes {
		if k == kind {
			return typ
		}
	}
	return ""
}

// projectOf returns the name of the project that a path below projects/ is in.
func projectOf(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "projects/"), "/")
	return name
}

// project returns a project of the commit or of the disk, or nil.
func (c *check) project(name string) *project {
	if p := c.index.projects[name]; p != nil || c.disk == nil {
		return p
	}
	p, ok := c.projects[name]
	if !ok {
		if content, ok := c.disk.Read("projects/"+name+"/project.json", maxFile); ok {
			parsed := parseProject(content)
			p = &parsed
		}
		c.projects[name] = p
	}
	return p
}

// parents yields a project and all those that it inherits from. It yields "" at the end if one of them is unknown, or if there are more
// than maxChain, as in a cycle.
func (c *check) parents(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for range maxChain {
			p := c.project(name)
			if p == nil {
				break
			}
			if !yield(name) || p.parent == "" {
				return
			}
			name = p.parent
		}
		yield("") // unknown, or a cycle
	}
}

// findInProject looks a view or a named query up in a project and its parents. If the project is inheritable, the resource may also be in a
// project that inherits from it, which then runs it.
func (c *check) findInProject(n Name) bool {
	defined := 0
	for name := range c.parents(n.Scope) {
		if name == "" || c.has(n, name) {
			return true
		}
		defined += c.index.scopes[Name{Kind: n.Kind, Scope: name}]
	}
	if c.disk == nil && defined == 0 {
		return true
	}
	p := c.project(n.Scope)
	if p == nil || !p.inheritable {
		return false
	}
	below, seen := slices.Clone(c.children[n.Scope]), map[string]bool{}
	for len(below) > 0 {
		name := below[0]
		if below = below[1:]; seen[name] {
			continue
		}
		seen[name] = true
		if c.has(n, name) {
			return true
		}
		below = append(below, c.children[name]...)
	}
	return false
}

// has reports whether a project itself has a view or a named query.
func (c *check) has(n Name, project string) bool {
	if n.Scope = project; c.index.defined[n] > 0 {
		return true
	}
	if c.disk == nil {
		return false
	}
	if n.Kind == View {
		return c.disk.Exists("projects/" + project + "/" + viewsFolder + n.Name + "/view.json")
	}
	return c.disk.Exists("projects/" + project + "/" + queryFolder + n.Name + "/" + resourceFile)
}

// parentProblem returns what is wrong with the parent of a project, or "".
func (c *check) parentProblem(name, parent string) Problem {
	p := c.project(parent)
	switch {
	case p == nil && c.disk == nil && !c.inheritable():
		return ""
	case p == nil && c.disk != nil && c.disk.Exists("projects/"+parent+"/project.json"):
		return "" // the parent exists, but cannot be read
	case p == nil:
		return Missing
	}
	for i := 0; p != nil && p.parent != "" && i < maxChain; i++ { // only the alphabetically first project of a cycle gets the finding
		if parent == name {
			return Cycle
		}
		if parent < name {
			break
		}
		parent = p.parent
		p = c.project(parent)
	}
	if p := c.project(c.index.projects[name].parent); !p.inheritable {
		return NotInheritable
	}
	return ""
}

// inheritable reports whether the commit has an inheritable project.
func (c *check) inheritable() bool {
	for _, p := range c.index.projects {
		if p.inheritable {
			return true
		}
	}
	return false
}

func (c *check) findType(n Name) bool {
	if c.index.unread[n.Scope] > 0 {
		return true
	}
	if !c.hasConfig() {
		return c.index.scopes[Name{Kind: UDTType, Scope: n.Scope}] == 0
	}
	for _, collection := range c.disk.Collections {
		dir := "config/resources/" + collection + "/ignition/tag-type-definition/" + n.Scope
		for folder := range foldersOf(n.Name) {
			if types := c.typesIn(n.Scope, dir, folder); types[n.key().Name] || types[""] {
				return true
			}
		}
	}
	return false
}

// foldersOf yields the folders that may have the udts.json with a type.
func foldersOf(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for folder := relpath.Parent(name); ; folder = relpath.Parent(folder) {
			if !yield(folder) || folder == "" {
				return
			}
		}
	}
}

// typesIn returns the types in the udts.json of a folder of the disk. A type "" means that there may be others.
func (c *check) typesIn(provider, dir, folder string) map[string]bool {
	path := c.spelling(dir, join(dir, folder)+"/udts.json")
	types, ok := c.types[path]
	if ok || !c.disk.Exists(path) {
		return types
	}
	types = map[string]bool{}
	content, ok := c.disk.Read(path, maxFile)
	var f file
	if !ok || f.extractTags(provider, folder, true, content) != nil {
		types[""] = true
	}
	for _, n := range f.defines {
		types[n.key().Name] = true
	}
	c.types[path] = types
	return types
}

// candidates yields the names that a user may have meant.
func (c *check) candidates(f *Finding) iter.Seq[string] {
	return func(yield func(string) bool) {
		if f.Kind == Project {
			for name, p := range c.index.projects {
				if p.inheritable && !yield(name) {
					return
				}
			}
			return
		}
		scopes := []string{f.In}
		if f.Kind == View || f.Kind == NamedQuery {
			scopes = slices.Collect(c.parents(f.In))
		}
		for _, file := range c.index.files {
			for _, n := range file.defines {
				if n.Kind == f.Kind && slices.Contains(scopes, n.Scope) && !yield(n.Name) {
					return
				}
			}
		}
	}
}
