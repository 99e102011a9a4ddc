package references

import (
	"bytes"
	"regexp"
	"strings"
)

// viewProp is a property of a Perspective component that has the path of a view. If onlyIf is set, the property counts only if its
// sibling onlyIf has the value equals.
type viewProp struct{ component, property, onlyIf, equals string }

// viewProps are the properties that always mean a view. Components of other makers and properties with a free structure, such as
// params, are left out.
var viewProps = []viewProp{
	{component: "ia.display.view", property: "props.path"},
	{component: "ia.display.flex-repeater", property: "props.path"},
	{component: "ia.display.carousel", property: "props.views[*].viewPath"},
	{component: "ia.display.viewcanvas", property: "props.instances[*].viewPath"},
	{component: "ia.display.dashboard", property: "props.widgets[*].viewPath"},
	{component: "ia.display.dashboard", property: "props.availableWidgets[*].viewPath"},
	{component: "ia.display.accordion", property: "props.items[*].body.viewPath"},
	{component: "ia.display.accordion", property: "props.items[*].header.content.viewPath", onlyIf: "type", equals: "view"},
	{component: "ia.display.table", property: "props.columns[*].viewPath", onlyIf: "render", equals: "view"},
	{component: "ia.display.table", property: "props.rows.subview.viewPath", onlyIf: "enabled", equals: "true"},
}

// viewHints are texts. A view that names views or named queries contains at least one. Most views contain none, and are not parsed.
var viewHints = [][]byte{[]byte("viewPath"), []byte("queryPath"), []byte(`ia.display.view"`), []byte("ia.display.flex-repeater")}

// extractView adds what a view.json names.
func (f *file) extractView(project string, content []byte) error {
	for _, hint := range viewHints {
		if bytes.Contains(content, hint) {
			return walk(content, &viewVisitor{file: f, project: project})
		}
	}
	return nil
}

// maxViewPath is the number of keys and indexes, below a component, of the longest path that a viewProp or an action of an event has.
const maxViewPath = 8

// viewVisitor reads the components of a view. The document counts as a component, because it may have bindings of its own.
type viewVisitor struct {
	file    *file
	project string
	open    []*component // innermost last
}

// component is what was read so far of a component. The order of its keys is not known, so that nothing is decided before its end.
type component struct {
	depth   int // of its members
	typ     string
	views   []mention
	queries []mention
	bound   map[string]string // property → type of its binding
	beside  map[string]string // property → value, of those that viewProps and actions depend on
}

// size returns the number of values that are kept.
func (c *component) size() int { return len(c.views) + len(c.queries) + len(c.bound) + len(c.beside) }

// mention is a value that may name something.
type mention struct {
	name     string
	pointer  string
	property string // of the component
}

func (v *viewVisitor) enter(at []segment) {
	if len(at) > 0 {
		if len(v.open) == 0 {
			return // the document is a list
		}
		c := v.open[len(v.open)-1]
		rel := at[c.depth:]
		isRoot := len(v.open) == 1 && len(rel) == 1 && rel[0].is("root")
		isChild := len(v.open) > 1 && len(rel) == 2 && rel[0].is("children") && rel[1].index >= 0
		if !isRoot && !isChild {
			return
		}
	}
	v.open = append(v.open, &component{depth: len(at)})
}

func (v *viewVisitor) leave(at []segment) {
	if last := len(v.open) - 1; last >= 0 && v.open[last].depth == len(at) {
		c := v.open[last]
		v.open = v.open[:last]
		c.finish(v.file, v.project)
	}
}

func (v *viewVisitor) scalar(at []segment, raw []byte) {
	if len(v.open) == 0 {
		return
	}
	c := v.open[len(v.open)-1]
	rel := at[c.depth:]
	if len(rel) > maxViewPath {
		return
	}
	switch last := rel[len(rel)-1]; {
	case len(rel) == 1 && last.is("type"):
		c.typ, _ = unquote(raw)
	case v.full():
	case rel[0].is("propConfig"):
		c.binding(at, rel, raw)
	case !rel[0].is("props") && !rel[0].is("events"):
	case last.is("path"), last.is("viewPath"):
		name, ok := unquote(raw)
		if property, short := property(rel); ok && name != "" && short {
			c.views = append(c.views, mention{name: name, pointer: pointer(at), property: property})
		}
	case last.is("type"), last.is("render"), last.is("enabled"):
		text, ok := unquote(raw)
		if !ok {
			text = string(raw[:min(len(raw), len("false"))])
		}
		if property, short := property(rel); short {
			set(&c.beside, property, text)
		}
	}
}

// full reports whether the components that are not complete have as many values as may be kept. A hostile view nests components, each
// of which is kept until its end.
func (v *viewVisitor) full() bool {
	n := 0
	for _, c := range v.open {
		n += c.size()
	}
	return n >= maxPerFile
}

func set(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// binding reads propConfig.<property>.binding.
func (c *component) binding(at, rel []segment, raw []byte) {
	if len(rel) < 4 || !rel[2].is("binding") {
		return
	}
	key, short := property(rel[1:2])
	if !short {
		return
	}
	switch text, _ := unquote(raw); {
	case len(rel) == 4 && rel[3].is("type"):
		set(&c.bound, key, text)
	case len(rel) == 5 && rel[3].is("config") && rel[4].is("queryPath"):
		c.queries = append(c.queries, mention{name: text, pointer: pointer(at), property: key})
	}
	if _, ok := c.bound[key]; !ok {
		set(&c.bound, key, "")
	}
}

// finish adds what the component names, when all of it was read.
func (c *component) finish(f *file, project string) {
	for _, m := range c.queries {
		if c.bound[m.property] == "query" {
			f.addPath(NamedQuery, project, m)
		}
	}
	for _, m := range c.views {
		if c.isView(m) && !c.isBound(m.property) {
			f.addPath(View, project, m)
		}
	}
}

// indexes matches the indexes in a property.
var indexes = regexp.MustCompile(`\[[0-9]+\]`)

// isView reports whether a value is the path of a view.
func (c *component) isView(m mention) bool {
	parent := strings.TrimSuffix(m.property, m.property[strings.LastIndexByte(m.property, '.'):])
	if action, ok := strings.CutSuffix(parent, ".config"); ok && strings.HasPrefix(m.property, "events.") {
		return c.beside[action+".type"] == "popup" && c.beside[parent+".type"] != "close"
	}
	for _, p := range viewProps {
		if p.component == c.typ && p.property == indexes.ReplaceAllString(m.property, "[*]") && (p.onlyIf == "" || c.beside[parent+"."+p.onlyIf] == p.equals) {
			return true
		}
	}
	return false
}

// isBound reports whether a binding replaces a property, or the object or list that it is in. The file then only has the value from the
// last save in the Designer; the gateway replaces it.
func (c *component) isBound(property string) bool {
	for key := range c.bound {
		if rest, ok := strings.CutPrefix(property, key); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// addPath adds a path of a view or a named query.
func (f *file) addPath(kind Kind, project string, m mention) {
	name := strings.Trim(m.name, "/")
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." { // a relative path, or not one at all
			return
		}
	}
	f.add(Name{kind, project, name}, m.pointer)
}

// pagesVisitor reads page-config/config.json: the views of pages and of docks.
type pagesVisitor struct {
	file    *file
	project string
}

func (v *pagesVisitor) enter([]segment) {}
func (v *pagesVisitor) leave([]segment) {}

func (v *pagesVisitor) scalar(at []segment, raw []byte) {
	if len(at) < 3 || !at[len(at)-1].is("viewPath") {
		return
	}
	page := at[0].is("pages") && (len(at) == 3 || len(at) == 6 && at[2].is("docks"))
	dock := at[0].is("sharedDocks") && len(at) == 4
	if text, ok := unquote(raw); ok && (page || dock) {
		v.file.addPath(View, v.project, mention{name: text, pointer: pointer(at)})
	}
}
