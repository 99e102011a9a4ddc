package references

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
)

// Index has what the files of one commit define and name. It grows with the number of views, queries, tags and config resources.
type Index struct {
	files    map[string]*file
	defined  map[Name]int   // by key
	scopes   map[Name]int   // definitions by kind and scope; Name.Name is ""
	unread   map[string]int // by file.unread: number of files
	projects map[string]*project
	names    int // in all files
	types    int // bytes of UDT types in all files
	// open are the files whose names the next check looks up: those that have changed, and those with a name that the commit does not define.
	// If all is set, a definition is gone or a project has changed, and the next check looks up the names of all files.
	open map[string]bool
	all  bool
}

// Reader returns the content of a desired file. ok is false if the content has more than limit bytes, or if it can be had neither from
// the store nor from the disk.
type Reader func(path string, id plan.ID, limit int64) (content []byte, ok bool, err error)

// NewIndex returns the Index of a commit without files.
func NewIndex() *Index {
	return &Index{
		files: map[string]*file{}, defined: map[Name]int{}, scopes: map[Name]int{}, unread: map[string]int{}, projects: map[string]*project{},
		open: map[string]bool{},
	}
}

// Update moves the index to the files of to. If from is what the index has now, Update reads only the directories that differ; it is
// nil if that tree or its rules are unknown. After an error the index is of no commit.
func (x *Index) Update(from, to *desired.Tree, read Reader) error {
	if from != nil {
		for d, err := range desired.Diff(from, to) {
			switch {
			case err != nil:
				return err
			case d.After == nil:
				x.replace(d.Path, nil)
			default:
				if err := x.put(d.Path, d.After.ID, read); err != nil {
					return err
				}
			}
		}
		return nil
	}
	seen := make(map[string]bool, len(x.files))
	for f, err := range to.Walk() {
		if err != nil {
			return err
		}
		if err := x.put(f.Path, f.ID, read); err != nil {
			return err
		}
		if x.files[f.Path] != nil {
			seen[f.Path] = true
		}
	}
	for path := range x.files {
		if !seen[path] {
			x.replace(path, nil)
		}
	}
	return nil
}

// put records a file, and reads it unless the index has it.
func (x *Index) put(path string, id plan.ID, read Reader) error {
	if old := x.files[path]; old != nil && old.id == id {
		return nil
	}
	extractor := extractorOf(path)
	if extractor == nil {
		return nil
	}
	var content []byte
	known := true
	if extractor.extract != nil {
		var err error
		if content, known, err = read(path, id, maxFile); err != nil {
			return err
		}
	}
	x.replace(path, extractor.read(id, content, known))
	return nil
}

// replace replaces what is known of a file; nil removes it.
func (x *Index) replace(path string, f *file) {
	old := x.files[path]
	var oldProject, newProject *project
	if old != nil {
		x.names -= len(old.names)
		x.types -= old.typesSize
		oldProject = old.project
	}
	if f == nil {
		delete(x.files, path)
		delete(x.open, path)
	} else {
		if room := maxReferences - x.names; len(f.names) > room {
			f.names = slices.Clone(f.names[:room])
		}
		x.names += len(f.names)
		if f.typesSize > maxTypes-x.types {
			f.unread, f.defines, f.typesSize = f.defines[0].Scope, nil, 0
		}
		x.types += f.typesSize
		x.files[path] = f
		x.open[path] = true
		x.count(f, 1)
		newProject = f.project
	}
	if old != nil { // last, so that a definition that stays is never gone
		x.count(old, -1)
	}
	switch {
	case newProject != nil:
		x.all = x.all || oldProject == nil || *oldProject != *newProject
		x.projects[projectOf(path)] = newProject
	case oldProject != nil:
		x.all = true
		delete(x.projects, projectOf(path))
	}
}

// count counts the definitions of a file.
func (x *Index) count(f *file, by int) {
	for _, n := range f.defines {
		x.all = !add(x.defined, n.key(), by) || x.all
		_ = add(x.scopes, Name{Kind: n.Kind, Scope: n.Scope}, by)
	}
	if f.unread != "" {
		x.all = !add(x.unread, f.unread, by) || x.all
	}
}

// add adds to a counter, and removes it at zero. It reports whether the counter is still there.
func add[K comparable](m map[K]int, key K, by int) bool {
	m[key] += by
	if m[key] == 0 {
		delete(m, key)
		return false
	}
	return true
}

// settles reports whether the commit itself defines a name, so that a check need not look it up again.
func (x *Index) settles(n Name) bool {
	for range maxChain {
		if x.defined[n.key()] > 0 {
			return true
		}
		p := x.projects[n.Scope]
		if n.Kind != View && n.Kind != NamedQuery || p == nil || p.parent == "" {
			return false
		}
		n.Scope = p.parent
	}
	return false
}

// platform is the folder of the resources that need no module.
const platform = "ignition"

// moduleFolder returns the folder of a path that is named for the module of its resource: projects/<project>/<module> or
// config/resources/<collection>/<module>. It returns "" for files of no module and for those of the platform.
func moduleFolder(path string) (folder, module string) {
	parts, level := strings.Split(path, "/"), 2
	if parts[0] == "config" {
		level = 3
	}
	if len(parts) < level+2 || parts[0] != "projects" && !strings.HasPrefix(path, "config/resources/") {
		return "", ""
	}
	// The id of a module has the form of a Java package. Folders such as .resources do not belong to a module.
	if module = parts[level]; module == platform || strings.Count(module, ".") < 2 || strings.HasPrefix(module, ".") {
		return "", ""
	}
	return strings.Join(parts[:level+1], "/"), module
}

// newModules returns the modules of folders that changes create, and the first file of each.
func newModules(changes *plan.Changes, state plan.State) map[string]string {
	first, folders := map[string]string{}, map[string]bool{}
	for _, c := range changes.List {
		folder, module := moduleFolder(c.Path)
		if c.Op != plan.Create || folder == "" || folders[folder] {
			continue
		}
		folders[folder] = true
		if st, err := state.Stat(folder); err != nil || st.Kind != plan.Missing {
			continue // there before the commit
		}
		if old, ok := first[module]; !ok || c.Path < old {
			first[module] = c.Path
		}
	}
	return first
}

// BringModules reports whether changes create the folder of a module.
func BringModules(changes *plan.Changes, state plan.State) bool {
	return len(newModules(changes, state)) > 0
}

// missingModules returns findings about modules that the gateway does not run. What the disk had before is not reported again.
func (t *Target) missingModules() (list []Finding) {
	first := newModules(t.Changes, t.State)
	if len(first) == 0 {
		return nil
	}
	running := t.Modules()
	if !slices.ContainsFunc(running, func(id string) bool { return strings.Count(id, ".") >= 2 }) {
		return nil // the gateway does not answer, or names its modules in another way
	}
	for _, id := range slices.Sorted(maps.Keys(first)) {
		if !slices.Contains(running, id) {
			list = append(list, Finding{File: first[id], Kind: Module, Name: id, Problem: Missing})
		}
	}
	return list
}

// extractTags adds the UDT types that a udts.json or tags.json of a tag provider names, and defines if types is set. folder is the
// path of its folder below the provider.
func (f *file) extractTags(provider, folder string, types bool, content []byte) error {
	if !types && !bytes.Contains(content, []byte(`"typeId"`)) {
		return nil
	}
	v := &tagsVisitor{file: f, provider: provider}
	err := walk(content, v)
	if !types {
		return err
	}
	for _, name := range v.inFolder(folder, v.types) {
		f.defines = append(f.defines, Name{UDTType, provider, name})
		f.typesSize += len(name) + typeSize
	}
	if v.size > maxTypesPerFile {
		f.defines, f.typesSize = nil, 0
		return errManyTypes
	}
	return err
}

var errManyTypes = errors.New("the file defines more types than are kept")

func join(folder, name string) string {
	if folder == "" {
		return name
	}
	return folder + "/" + name
}

// tagsVisitor reads a list of tags, each of which may have a list of tags.
type tagsVisitor struct {
	file     *file
	provider string
	open     []*tag // innermost last
	types    []string
	size     int // of all types, as typeSize counts it
}

// typeSize is what a type takes in memory in addition to its path, in bytes.
const typeSize = 64

// tag is what was read so far of a tag.
type tag struct {
	depth              int // of its members
	name, kind, typeID string
	pointer            string   // of typeId
	types              []string // defined below it, relative to it
}

func (v *tagsVisitor) enter(at []segment) {
	if len(v.open) == 0 {
		if len(at) > 1 || len(at) == 1 && at[0].index < 0 {
			return
		}
	} else {
		rel := at[v.open[len(v.open)-1].depth:]
		if len(rel) != 2 || !rel[0].is("tags") || rel[1].index < 0 {
			return
		}
	}
	v.open = append(v.open, &tag{depth: len(at)})
}

func (v *tagsVisitor) leave(at []segment) {
	last := len(v.open) - 1
	if last < 0 || v.open[last].depth != len(at) {
		return
	}
	t := v.open[last]
	v.open = v.open[:last]
	types := t.types
	switch t.kind {
	case "UdtType":
		types = nil
		if v.size += len(t.name) + typeSize; v.size <= maxTypesPerFile {
			types = []string{t.name}
		}
		v.addType(t)
	case "UdtInstance":
		types = nil
		v.addType(t)
	case "Folder":
		types = v.inFolder(t.name, types)
	default:
		types = nil
	}
	if last > 0 {
		v.open[last-1].types = append(v.open[last-1].types, types...)
	} else {
		v.types = append(v.types, types...)
	}
}

// inFolder prefixes types with the path of their folder. It leaves out those that become longer than maxName.
func (v *tagsVisitor) inFolder(folder string, types []string) []string {
	if folder == "" {
		return types
	}
	types = slices.DeleteFunc(types, func(path string) bool { return len(folder)+len("/")+len(path) > maxName })
	if v.size += len(types) * (len(folder) + len("/")); v.size > maxTypesPerFile {
		return nil
	}
	for i := range types {
		types[i] = join(folder, types[i])
	}
	return types
}

func (v *tagsVisitor) scalar(at []segment, raw []byte) {
	if len(v.open) == 0 {
		return
	}
	t := v.open[len(v.open)-1]
	if len(at) != t.depth+1 {
		return
	}
	switch key := at[t.depth]; {
	case key.is("name"):
		t.name, _ = unquote(raw)
	case key.is("tagType"):
		t.kind, _ = unquote(raw)
	case key.is("typeId"):
		t.typeID, _ = unquote(raw)
		t.pointer = pointer(at)
	}
}

// addType adds the type of an instance, or the parent of a type. It may be written [provider]_types_/folder/name.
func (v *tagsVisitor) addType(t *tag) {
	name := strings.TrimSpace(t.typeID)
	if rest, ok := strings.CutPrefix(name, "["); ok {
		provider, path, found := strings.Cut(rest, "]")
		if !found || provider != v.provider {
			return // whether types of another provider count is not known
		}
		name = path
	}
	name = strings.Trim(strings.TrimPrefix(strings.Trim(name, "/"), "_types_/"), "/")
	v.file.add(Name{UDTType, v.provider, name}, t.pointer)
}
