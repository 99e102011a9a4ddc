package references

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/internal/bound"
)

// commit is a commit in an object store.
type commit struct {
	objects *plantest.Objects
	tree    *desired.Tree
}

// newCommit commits files by their path in the data directory.
func newCommit(t testing.TB, files map[string]string) commit {
	t.Helper()
	objects := plantest.NewObjects()
	root := objects.Commit(plantest.Text(files))
	rules := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "projects", "projects", "config", "config")})
	tree, err := desired.NewTree(objects, root, rules)
	require.NoError(t, err)
	return commit{objects, tree}
}

// read reads files of the commit.
func (c commit) read(_ string, id plan.ID, limit int64) ([]byte, bool, error) {
	b := bound.NewBuffer(limit, func() error { return bound.ErrTooLarge })
	_, err := c.tree.WriteBlob(b, id)
	return b.Bytes(), err == nil, nil
}

// indexOf returns the index of files.
func indexOf(t testing.TB, files map[string]string) *Index {
	t.Helper()
	c, x := newCommit(t, files), NewIndex()
	require.NoError(t, x.Update(nil, c.tree, c.read))
	return x
}

// diskOf returns a gateway of 8.3 with files.
func diskOf(files map[string]string) *Disk {
	return &Disk{
		Exists:      func(path string) bool { _, ok := files[path]; return ok },
		Read:        func(path string, _ int64) ([]byte, bool) { text, ok := files[path]; return []byte(text), ok },
		Collections: []string{"core", "external", "local"},
	}
}

// texts returns the findings as text.
func texts(r Result) []string {
	list := make([]string, 0, len(r.Findings))
	for i := range r.Findings {
		list = append(list, r.Findings[i].String())
	}
	return list
}

const (
	perspective = "com.inductiveautomation.perspective/"
	core        = "config/resources/core/ignition/"
)

// builder writes files as gateways do.
type builder map[string]string

func (b builder) project(name, parent string, inheritable bool) {
	b["projects/"+name+"/project.json"] = fmt.Sprintf(`{"title": "", "description": "", "parent": %q, "enabled": true, "inheritable": %t}`, parent, inheritable)
}

func (b builder) resource(dir, file, content string) {
	b[dir+"/resource.json"] = fmt.Sprintf(`{"scope": "G", "version": 1, "files": [%q], "attributes": {}}`, file)
	b[dir+"/"+file] = content
}

// view writes a view with components.
func (b builder) view(project, name string, components ...string) {
	b.resource("projects/"+project+"/"+perspective+"views/"+name, "view.json",
		`{"custom": {}, "params": {}, "propConfig": {}, "root": {"children": [`+strings.Join(components, ", ")+`], "meta": {"name": "root"}, "type": "ia.container.flex"}}`)
}

func (b builder) query(project, name, database string) {
	dir := "projects/" + project + "/ignition/named-query/" + name
	b[dir+"/resource.json"] = fmt.Sprintf(`{"scope": "DG", "version": 2, "files": ["query.sql"], "attributes": {"type": "Query", "enabled": true, "database": %q, "parameters": []}}`, database)
	b[dir+"/query.sql"] = "SELECT 1"
}

func (b builder) config(path, content string) {
	b.resource("config/resources/core/"+path, "config.json", content)
}

func (b builder) tags(path, content string) {
	b[core+path+"/unary-resource.json"] = `{"scope": "G", "version": 1, "files": ["udts.json"], "attributes": {}}`
	b[core+path+"/udts.json"] = content
}

// Components, with their keys in the gateway's order: type comes last.
func part(typ, props string) string {
	return fmt.Sprintf(`{"meta": {"name": "x"}, "props": {%s}, "type": %q}`, props, typ)
}

func embedded(view string) string {
	return part("ia.display.view", fmt.Sprintf(`"params": {"path": "x", "viewPath": "y"}, "path": %q`, view))
}

func boundTo(query string) string {
	return fmt.Sprintf(`{"meta": {"name": "t"}, "propConfig": {"props.data": {"binding": {"config": {"parameters": {}, "polling": {"enabled": true}, "queryPath": %q}, "type": "query"}}}, "props": {}, "type": "ia.display.table"}`, query)
}

func opening(view string) string {
	return fmt.Sprintf(`{"events": {"dom": {"onClick": {"config": {"id": "p", "type": "open", "viewPath": %q}, "scope": "C", "type": "popup"}}}, "meta": {"name": "b"}, "type": "ia.input.button"}`, view)
}

// plant returns the files of a plant: a library, lines that inherit from it, tags with types, and connections. Each line has what lines
// have in different numbers.
func plant(lines int) builder {
	b := builder{}
	b.project("library", "", true)
	b.project("overview", "library", false)
	for _, name := range []string{"Header", "Footer", "Pump", "Valve", "Tank"} {
		b.view("library", "Common/"+name)
	}
	b.view("library", "Common/Row", embedded("Common/Pump"), embedded("Common/Valve"))
	b.view("library", "Common/Faceplate", opening("Common/Pump"))
	b.query("library", "Shared/Alarms", "historian")
	b.config("ignition/database-connection/historian", `{"connectURL": "jdbc:postgresql://db"}`)
	b.config("ignition/database-connection/mes", `{"connectURL": "jdbc:postgresql://mes"}`)
	b.config("ignition/user-source/operators", `{"profile": {"failoverProfile": "default", "type": "INTERNAL"}}`)
	b.config("ignition/user-source/default", `{"profile": {"failoverProfile": null, "type": "INTERNAL"}}`)
	b.config("ignition/identity-provider/operators", `{"profile": {"type": "internal"}, "settings": {"userSource": "operators"}}`)
	b.config("ignition/security-properties", `{"systemAuthProfile": "default", "systemIdentityProvider": "operators"}`)
	b.config("com.inductiveautomation.historian/historian-provider/main", `{"profile": {"type": "SqlHistorian"}, "settings": {"database": "historian"}}`)
	b.view("overview", "Plant", part("ia.display.carousel", `"views": [{"viewPath": "Common/Tank"}, {"viewPath": ""}]`))
	for i := range lines {
		line := fmt.Sprintf("line-%d", i)
		b.project(line, "library", false)
		b.query(line, "Production/Shifts", "mes")
		b.query(line, "Production/Orders", "mes")
		b.view(line, "Pages/Main", embedded("Common/Header"), embedded("Parts/Motor"), boundTo("Production/Shifts"), boundTo("Shared/Alarms"))
		b.view(line, "Pages/Detail", part("ia.display.flex-repeater", `"instances": [{"path": "no view"}], "path": "Parts/Motor"`),
			part("ia.display.viewcanvas", `"instances": [{"viewPath": "Parts/Motor"}, {"viewPath": "Common/Tank"}]`))
		b.view(line, "Pages/Orders", boundTo("Production/Orders"),
			part("ia.display.table", `"columns": [{"field": "a", "render": "auto", "viewPath": "Stale"}, {"field": "b", "render": "view", "viewPath": "Parts/Cell"}], "rows": {"subview": {"enabled": true, "viewPath": "Parts/Motor"}}`),
			part("ia.display.accordion", `"items": [{"body": {"viewPath": "Parts/Cell"}, "header": {"content": {"type": "text", "viewPath": "Stale"}}}]`))
		b.view(line, "Parts/Motor", opening("Common/Faceplate"))
		b.view(line, "Parts/Cell")
		b.view(line, "Docks/Menu")
		b.resource("projects/"+line+"/"+perspective+"page-config", "config.json", `{"pages": {"/": {"title": "", "viewPath": "Pages/Main"},
			"/detail/:id": {"docks": {"left": [{"id": "m", "viewPath": "Docks/Menu"}]}, "viewPath": "Pages/Detail"}, "/orders": {"viewPath": "Pages/Orders"}},
			"sharedDocks": {"cornerPriority": "top-bottom", "top": [{"id": "h", "viewPath": "Common/Header"}], "bottom": [{"viewPath": "Common/Footer"}]}}`)
		provider := "plc-" + line
		b.config("ignition/tag-provider/"+provider, `{"profile": {"type": "STANDARD"}, "settings": {"defaultDatasourceName": "historian"}}`)
		b.tags("tag-type-definition/"+provider, `[{"name": "Base", "tagType": "UdtType", "tags": []}]`)
		b.tags("tag-type-definition/"+provider+"/Drives", `[{"name": "Motor", "typeId": "Base", "tagType": "UdtType", "tags": [{"name": "Inner", "typeId": "Drives/Fan", "tagType": "UdtInstance"}]},
			{"tagType": "Folder", "tags": [{"tagType": "UdtType", "name": "Servo", "typeId": "Drives/Motor"}], "name": "Small"}, {"name": "Fan", "tagType": "UdtType", "tags": [{"name": "x", "tagType": "AtomicTag", "typeId": "?"}]}]`)
		b.tags("tag-definition/"+provider+"/Hall", `[{"name": "M1", "typeId": "Drives/Motor", "tagType": "UdtInstance"}, {"name": "S1", "typeId": "[`+provider+`]_types_/Drives/Small/Servo", "tagType": "UdtInstance"},
			{"name": "X", "typeId": {"bindType": "parameter", "binding": "{T}"}, "tagType": "UdtInstance"}, {"name": "F", "tagType": "Folder", "tags": [{"name": "M2", "typeId": "drives/motor", "tagType": "UdtInstance"}]}]`)
	}
	return b
}

// without returns the files without those below a folder.
func (b builder) without(t testing.TB, dir string) builder {
	t.Helper()
	left := maps.Clone(b)
	maps.DeleteFunc(left, func(path, _ string) bool { return strings.HasPrefix(path, dir+"/") })
	require.Less(t, len(left), len(b), dir)
	return left
}

// with returns the files with a text replaced in one of them.
func (b builder) with(t testing.TB, path, old, replacement string) builder {
	t.Helper()
	require.Contains(t, b[path], old, path)
	changed := maps.Clone(b)
	changed[path] = strings.Replace(b[path], old, replacement, 1)
	return changed
}

// paths returns the paths of the files, sorted.
func (b builder) paths() []string { return slices.Sorted(maps.Keys(b)) }
