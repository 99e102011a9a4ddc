package references

import (
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/test/heap"
)

// Whatever the files of a commit are, a check takes bounded time and memory.
func TestHostileFiles(t *testing.T) {
	view := func(i int) string { return fmt.Sprintf("projects/p/%sviews/v%d/view.json", perspective, i) }
	one := func(text string) builder {
		return builder{"projects/p/project.json": `{"parent": ""}`, view(0): text, core + "tag-definition/t/udts.json": text, core + "tag-type-definition/t/udts.json": text,
			"projects/p/" + pagesPath: text, "projects/p/ignition/named-query/q/resource.json": text, core + "user-source/u/config.json": text}
	}
	nest := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for _, c := range []struct {
		name  string
		files builder
	}{
		{"no JSON", one("viewPath typeId \x00\xff")},
		{"nothing", one("")},
		{"a scalar", one(`"viewPath"`)},
		{"a list of objects", one(`[{"viewPath": 0, "typeId": "a"}]`)},
		{"lists in lists", one(`[[{"viewPath": "a"}], {"root": [{"viewPath": "a"}]}, "typeId"]`)},
		{"an end without a beginning", one(`]}viewPath "typeId"`)},
		{"deep lists", one("[\"viewPath\", \"typeId\", " + nest("[", "]", 1_000_000) + "]")},
		{"deep objects", one(nest(`{"children": [{"viewPath": "a", "typeId": `, "}]}", 80_000))},
		{"deep folders", one(`[` + nest(`{"name": "a", "tagType": "Folder", "typeId": "b", "tags": [`, `]}`, 60_000) + `]`)},
		{"a wide list", one(`{"viewPath": [` + strings.Repeat(`"a",`, 800_000) + `"typeId"]}`)},
		{"many components", one(`{"root": {"children": [` + strings.TrimSuffix(strings.Repeat(embedded("gone")+",", 30_000), ",") + `]}}`)},
		{"many properties", one(`{"root": {"type": "ia.display.table", "propConfig": {` + manyKeys(60_000, `"props.p%d": {"binding": {"type": "expr"}}`) +
			`}, "props": {"columns": [` + strings.TrimSuffix(strings.Repeat(`{"render": "view", "viewPath": "gone"},`, 30_000), ",") + `]}}}`)},
		{"a long name", one(`{"root": ` + embedded(strings.Repeat("a/", 1_000_000)) + `}`)},
		{"a long key", one(`{"root": {"` + strings.Repeat("~", 3_000_000) + `": {"viewPath": "a"}, "typeId": "a"}}`)},
		{"more than the limit of a file", one(`{"viewPath": "` + strings.Repeat("a", maxFile) + `"}`)},
		{"names that are no paths", one(`{"pages": {"a": {"viewPath": "../../../etc/passwd"}, "b": {"viewPath": "a\u0000b"}, "c": {"viewPath": "a//b"}}}`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			commit, x := newCommit(t, c.files), NewIndex()
			began := time.Now()
			peak := heap.Peak(t, func() {
				require.NoError(t, x.Update(nil, commit.tree, commit.read))
				r := x.Check(x.Check(nil, diskOf(nil)).Found, diskOf(nil))
				assert.LessOrEqual(t, len(r.Findings), MaxFindings)
				r = x.Check(nil, diskOf(nil))
				for i := range r.Findings {
					assert.Less(t, len(r.Findings[i].String()), 1_500)
					assert.NotContains(t, r.Findings[i].String(), "\x00")
				}
			})
			t.Logf("%v, %d MiB", time.Since(began).Round(time.Millisecond), peak)
			assert.Less(t, peak, 128)
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	}
}

// A file of 4 MiB takes little memory to read, although a component is kept until its end.
func TestMemoryOfOneFile(t *testing.T) {
	key := func(i int) string { return strings.Repeat("k", 1_000) + strconv.Itoa(i) }
	// keys opens objects, each under a long key, and one list of the values that are inside.
	keys := func(n int, values string) string {
		open := ""
		for i := range n {
			open += fmt.Sprintf(`{%q: `, key(i))
		}
		return open + "[" + values + "]" + strings.Repeat("}", n)
	}
	components := func(n int, members string) string {
		return `{"root": ` + strings.Repeat(`{`+members+`, "children": [`, n) + `{}` + strings.Repeat(`]}`, n) + `, "custom": "viewPath"}`
	}
	repeat := func(value string, n int) string { return strings.TrimSuffix(strings.Repeat(value+",", n), ",") }
	long := fmt.Sprintf("%q", strings.Repeat("n", 1_000))
	view, types := "projects/p/"+perspective+"views/v/view.json", core+"tag-type-definition/t/udts.json"
	for _, tt := range []struct{ name, path, content string }{
		{"paths under long keys", view, components(59, `"props": `+keys(5, repeat(`{"path":"a"}`, 4_990)))},
		{"paths under a long key", view, components(59, `"props": `+keys(1, repeat(`{"path":"a"}`, 4_990)))},
		{"actions under long keys", view, components(59, `"events": `+keys(5, repeat(`{"path":"a"}`, 4_990)))},
		{"settings under long keys", view, components(59, `"props": `+keys(5, repeat(`{"type":"a"}`, 4_990)))},
		{"long names", view, components(400, `"type": "ia.display.table", "props": {"columns": [`+repeat(`{"viewPath":`+long+`}`, 10)+`]}`)},
		{"bindings under long keys", view, components(400, `"propConfig": {`+manyKeys(10, `"`+strings.Repeat("k", 1_000)+`%d": {"binding": {"type": "expr"}}`)+`}`)},
		{"types in folders with long names", types, strings.Repeat(`[{"name": `+long+`, "tagType": "Folder", "tags": `, 400) +
			`[` + repeat(`{"name": "a", "tagType": "UdtType"}`, 100_000) + `]` + strings.Repeat(`}]`, 400)},
		{"types in a folder with a long name", types, `[{"name": ` + long[:900] + `", "tagType": "Folder", "tags": [` + repeat(`{"name": "a", "tagType": "UdtType"}`, 110_000) + `]}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			content := []byte(tt.content)
			require.LessOrEqual(t, len(content), maxFile)
			peak := heap.Peak(t, func() { extractorOf(tt.path).read(plan.ID{}, content, true) })
			t.Logf("%d MiB for a file of %d KiB", peak, len(content)>>10)
			assert.Less(t, peak, 32)
		})
	}
}

func manyKeys(n int, pattern string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(pattern, i)
	}
	return strings.Join(list, ",")
}

// memoryOf returns how much more memory is in use after f than before.
func memoryOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc < before.HeapAlloc {
		return 0
	}
	return after.HeapAlloc - before.HeapAlloc
}

func TestManyReferences(t *testing.T) {
	b := builder{}
	b.project("p", "", true)
	for i := range 300 { // setup: half a million names, each of another view
		parts := make([]string, 2_000)
		for j := range parts {
			parts[j] = embedded(fmt.Sprintf("Gone/%d/%d", i, j))
		}
		b.view("p", fmt.Sprintf("v%d", i), parts...)
	}
	c := newCommit(t, b)
	x := NewIndex()
	began := time.Now()
	grew := memoryOf(func() { require.NoError(t, x.Update(nil, c.tree, c.read)) })
	t.Logf("index: %v, %d MiB", time.Since(began).Round(time.Millisecond), grew>>20)
	assert.Equal(t, maxReferences, x.names)
	assert.NotZero(t, grew)
	assert.Less(t, grew, uint64(64<<20))
	began = time.Now()
	r := x.Check(nil, diskOf(nil))
	t.Logf("check: %v", time.Since(began).Round(time.Millisecond))
	assert.Len(t, r.Findings, MaxFindings)
	assert.Equal(t, maxReferences, len(r.Findings)+r.More)
	assert.Less(t, time.Since(began), 20*time.Second)
	runtime.KeepAlive(b)
	runtime.KeepAlive(c)
}

// If the types of a provider are more than are kept, no type of it counts as missing.
func TestManyTypes(t *testing.T) {
	types := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`{"name": "type-%d", "tagType": "UdtType"}`, i)
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	const tags = core + "tag-definition/t/udts.json"
	for _, tt := range []struct {
		name                  string
		files, typesInEach    int
		kept, reportsAMissing bool
	}{
		{"few", 2, 1_000, true, true},
		{"more than the limit of a file", 1, 40_000, false, false},
		{"more than the limit of a commit", 12, 25_000, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := builder{tags: `[{"name": "a", "tagType": "UdtInstance", "typeId": "gone"}]`}
			text := types(tt.typesInEach)
			for i := range tt.files { // setup: the files
				b[fmt.Sprintf("%stag-type-definition/t/folder-%d/udts.json", core, i)] = text
			}
			x := indexOf(t, b)
			assert.LessOrEqual(t, x.types, maxTypes)
			assert.Equal(t, tt.kept, x.defined[Name{UDTType, "t", "folder-0/type-7"}.key()] > 0)
			missing := slices.ContainsFunc(x.Check(nil, diskOf(nil)).Findings, func(f Finding) bool { return f.Kind == UDTType })
			assert.Equal(t, tt.reportsAMissing, missing)
			for path := range b {
				x.replace(path, nil)
			}
			assert.Zero(t, x.types)
			assert.Empty(t, x.defined)
			assert.Empty(t, x.unread)
		})
	}
}

func TestManyProjectsInACycle(t *testing.T) {
	b := builder{}
	const n = 3_000
	for i := range n {
		b.project(fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", (i+1)%n), true)
		b.view(fmt.Sprintf("p%d", i), "v", embedded("gone"))
	}
	b.project("a", "b", true)
	b.project("b", "c", true)
	b.project("c", "a", true)
	b.view("a", "v", embedded("gone"))
	x := indexOf(t, b)
	began := time.Now()
	list := texts(x.Check(nil, diskOf(nil)))
	assert.Less(t, time.Since(began), 20*time.Second)
	require.Len(t, list, 1, "a cycle that is longer than any chain of parents is not followed")
	assert.Contains(t, list[0], `"projects/a/project.json#/parent" names the project "b", which inherits from it`)
}

// Any text in any kind of file is read without a panic.
func FuzzFiles(f *testing.F) {
	for _, seed := range []string{`[{"viewPath":0}]`, `{"root":{"children":[{"type":"ia.display.view","props":{"path":"a"}}]}}`, `{"pages":{"/":{"viewPath":"a"}}}`,
		`[{"name":"a","typeId":"b","tags":[{"typeId":"c"}]}]`, `{"attributes":{"database":"x"}}`, `{"propConfig":{"a":{"binding":{"type":"query","config":{"queryPath":"q"}}}}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x := indexOf(t, builder{
			"projects/p/project.json": text, "projects/p/" + perspective + "views/v/view.json": text, "projects/p/" + pagesPath: text,
			"projects/p/ignition/named-query/q/resource.json": text, core + "tag-definition/t/udts.json": text,
			core + "tag-type-definition/t/udts.json": text, core + "user-source/u/config.json": text, core + "identity-provider/i/config.json": text,
		})
		x.Check(nil, diskOf(nil))
	})
}

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
		Files:       func(string) iter.Seq[string] { return maps.Keys(files) },
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

// plant returns the files of a plant: a library, lines that inherit from it, tags with types, and connections. All lines have the same
// resources.
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
