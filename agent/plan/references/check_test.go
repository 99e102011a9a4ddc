package references

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/trees"
)

func TestPlantHasNoFindings(t *testing.T) {
	x := indexOf(t, plant(3))
	assert.Empty(t, texts(x.Check(nil, nil)))
	assert.Empty(t, texts(x.Check(nil, diskOf(nil))))
}

func TestCheck(t *testing.T) {
	b := plant(1)
	view := func(name string) string { return "projects/line-0/" + perspective + "views/" + name }
	for _, c := range []struct {
		name  string
		files builder
		want  string
	}{
		{"an embedded view", b.with(t, view("Pages/Main/view.json"), "Common/Header", "Common/Haeder"),
			`children/0/props/path" names the view "Common/Haeder", which the project "line-0" and its parents do not have (did you mean "Common/Header"?)`},
		{"a renamed view", b.without(t, view("Docks")),
			`"projects/line-0/com.inductiveautomation.perspective/page-config/config.json#/pages/~1detail~1:id/docks/left/0/viewPath" names the view "Docks/Menu", which the project "line-0" and its parents do not have`},
		{"a view of a table", b.with(t, view("Pages/Orders/view.json"), "Parts/Cell", "Parts/Cel"), "children/1/props/columns/1/viewPath"},
		{"a view of an accordion", b.with(t, view("Pages/Orders/view.json"), `"body": {"viewPath": "Parts/Cell"`, `"body": {"viewPath": "Gone"`), "children/2/props/items/0/body/viewPath"},
		{"a popup", b.with(t, view("Parts/Motor/view.json"), "Common/Faceplate", "Faceplate"), `children/0/events/dom/onClick/config/viewPath" names the view "Faceplate", which the project "line-0" and its parents do not have (did you mean "Common/Faceplate"?)`},
		{"a query", b.with(t, view("Pages/Main/view.json"), "Production/Shifts", "Production/Shift"),
			`children/2/propConfig/props.data/binding/config/queryPath" names the named query "Production/Shift", which the project "line-0" and its parents do not have (did you mean "Production/Shifts"?)`},
		{"a database of a query", b.without(t, core+"database-connection/mes"), `"projects/line-0/ignition/named-query/Production/Orders/resource.json#/attributes/database" names the database connection "mes", which does not exist (1 more places)`},
		{"a database of a historian", b.with(t, "config/resources/core/com.inductiveautomation.historian/historian-provider/main/config.json", "historian\"}", "gone\"}"), `historian-provider/main/config.json#/settings/database" names the database connection "gone"`},
		{"a user source", b.without(t, core+"user-source/operators"), `identity-provider/operators/config.json#/settings/userSource" names the user source "operators", which does not exist`},
		{"an identity provider", b.with(t, core+"security-properties/config.json", `"operators"`, `"operator"`), `security-properties/config.json#/systemIdentityProvider" names the identity provider "operator", which does not exist (did you mean "operators"?)`},
		{"a tag provider", b.without(t, core+"tag-provider/plc-line-0"), `names the tag provider "plc-line-0", which does not exist`},
		{"a type", b.with(t, core+"tag-definition/plc-line-0/Hall/udts.json", "Drives/Motor", "Drives/Moter"), `Hall/udts.json#/0/typeId" names the UDT type "Drives/Moter", which the tag provider "plc-line-0" does not have (did you mean "Drives/Motor"?)`},
		{"the parent of a type", b.without(t, core+"tag-type-definition/plc-line-0/Drives").with(t, core+"tag-definition/plc-line-0/Hall/udts.json", "Drives/Motor", "Base"), `names the UDT type`},
		{"an inherited type", b.with(t, core+"tag-type-definition/plc-line-0/Drives/udts.json", `"typeId": "Base"`, `"typeId": "Basis"`), `Drives/udts.json#/0/typeId" names the UDT type "Basis"`},
		{"a type in a type", b.with(t, core+"tag-type-definition/plc-line-0/Drives/udts.json", "Drives/Fan", "Drives/Fen"), `Drives/udts.json#/0/tags/0/typeId" names the UDT type "Drives/Fen", which the tag provider "plc-line-0" does not have (did you mean "Drives/Fan"?)`},
		{"a parent", b.with(t, "projects/line-0/project.json", "library", "librery"), `"projects/line-0/project.json#/parent" names the project "librery", which does not exist (did you mean "library"?)`},
		{"a parent that is not inheritable", b.with(t, "projects/line-0/project.json", "library", "overview"), `names the project "overview", which is not inheritable`},
		{"a cycle", b.with(t, "projects/library/project.json", `"parent": ""`, `"parent": "library"`), `"projects/library/project.json#/parent" names the project "library", which inherits from it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := texts(indexOf(t, c.files).Check(nil, diskOf(nil)))
			require.NotEmpty(t, list)
			assert.True(t, slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, c.want) }), "%q\nwant %s", list, c.want)
		})
	}
}

func TestNoFinding(t *testing.T) {
	b := plant(1)
	main := "projects/line-0/" + perspective + "views/Pages/Main/view.json"
	line := "projects/line-0/" + perspective + "views/"
	changed := func(text string) builder {
		b := maps.Clone(b)
		b.view("line-0", "Pages/Main", text)
		return b
	}
	added := func(path, content string) builder {
		b := maps.Clone(b)
		b[path] = content
		return b
	}
	for _, c := range []struct {
		name  string
		files builder
		disk  map[string]string
	}{
		{"a rename of a view and of all that embeds it", renamed(b, "Parts/Motor", "Parts/Drive"), nil},
		{"a view of the gateway", b.with(t, main, "Common/Header", "Local/Header"), map[string]string{line + "Local/Header/view.json": "{}"}},
		{"a parent of the gateway", b.with(t, "projects/line-0/project.json", "library", "base"), map[string]string{
			"projects/base/project.json": `{"inheritable": true, "parent": "library"}`}},
		{"a view of a parent of the gateway", b.with(t, "projects/line-0/project.json", "library", "base").with(t, main, "Common/Header", "Base"), map[string]string{
			"projects/base/project.json": `{"inheritable": true, "parent": "library"}`, "projects/base/" + perspective + "views/Base/view.json": "{}"}},
		{"a database of the gateway", b.without(t, core+"database-connection/mes"), map[string]string{"config/resources/local/ignition/database-connection/mes/resource.json": "{}"}},
		{"a type of the gateway", b.with(t, core+"tag-definition/plc-line-0/Hall/udts.json", "Drives/Motor", "Local/Pumps/Big"), map[string]string{
			core + "tag-type-definition/plc-line-0/Local/udts.json": `[{"name": "Pumps", "tagType": "Folder", "tags": [{"name": "Big", "tagType": "UdtType"}]}]`}},
		{"a type of the gateway in another case", b.with(t, core+"tag-definition/plc-line-0/Hall/udts.json", "Drives/Motor", "local/pumps/big"), map[string]string{
			core + "tag-type-definition/plc-line-0/Local/udts.json": `[{"name": "Pumps", "tagType": "Folder", "tags": [{"name": "Big", "tagType": "UdtType"}]}]`}},
		{"a database of the gateway in another case", b.without(t, core+"database-connection/mes"), map[string]string{"config/resources/local/ignition/database-connection/MES/resource.json": "{}"}},
		{"a path that is bound", changed(`{"meta": {}, "propConfig": {"props.path": {"binding": {"config": {"expression": "1"}, "type": "expr"}}}, "props": {"path": "Stale"}, "type": "ia.display.view"}`), nil},
		{"a list that is bound", changed(`{"propConfig": {"props.instances": {"binding": {"type": "property"}}}, "props": {"instances": [{"viewPath": "Stale"}]}, "type": "ia.display.viewcanvas"}`), nil},
		{"the path of an image", changed(part("ia.display.image", `"path": "Stale", "viewPath": "Stale"`)), nil},
		{"data", changed(part("ia.display.table", `"data": [{"viewPath": "Stale", "render": "view"}]`)), nil},
		{"a popup that closes", changed(strings.Replace(opening("Stale"), `"type": "open"`, `"type": "close"`, 1)), nil},
		{"an action of a script", changed(strings.Replace(opening("Stale"), `"type": "popup"`, `"type": "script"`, 1)), nil},
		{"a query path of another binding", changed(strings.Replace(boundTo("Stale"), `"type": "query"`, `"type": "tag"`, 1)), nil},
		{"a parameter", changed(embedded("Parts/{kind}")), nil},
		{"a relative path", changed(embedded("../Motor")), nil},
		{"a slash at the beginning", changed(embedded("/Parts/Motor")), nil},
		{"a view that only a child has", b.with(t, "projects/library/"+perspective+"views/Common/Row/view.json", "Common/Pump", "Pages/Main"), nil},
		{"a project without its parent", b.with(t, "projects/line-0/project.json", "library", ""), nil},
		{"tags of a module", added(core+"tag-definition/MQTT Engine/x/udts.json", `[{"name": "a", "typeId": "Generated", "tagType": "UdtInstance"}]`), nil},
		{"types that cannot be read", added(core+"tag-type-definition/plc-line-0/udts.json", strings.Repeat("[", 2000)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := texts(indexOf(t, c.files).Check(nil, diskOf(c.disk)))
			if c.name == "a project without its parent" { // only names from the library are missing, all of them in this project
				for _, text := range list {
					assert.Contains(t, text, `"line-0"`)
				}
				return
			}
			assert.Empty(t, list)
		})
	}
}

// The disk of a gateway may spell names of configuration in another case.
func TestSpellingOnDisk(t *testing.T) {
	const path = "config/resources/local/ignition/database-connection/MES/resource.json"
	c := plan.Changes{List: []plan.Change{{Op: plan.Delete, Path: path}}}
	target := Target{State: plantest.NewDisk(map[string]string{path: "{}"})}
	for name, known := range map[string]bool{"mes": true, "erp": false} {
		n := Name{Kind: Database, Name: name}
		assert.Equal(t, known, NewIndex().newCheck(target.disk(nil)).find(n), name)
		assert.False(t, NewIndex().newCheck(target.disk(&c)).find(n), "%s, which the plan deletes", name)
	}
}

// renamed moves a view, and changes each text that is its path.
func renamed(b builder, from, to string) builder {
	after := builder{}
	for path, text := range b {
		after[strings.Replace(path, "/"+from+"/", "/"+to+"/", 1)] = strings.ReplaceAll(text, `"`+from+`"`, `"`+to+`"`)
	}
	return after
}

// Before 8.3, a gateway keeps its connections and tags in a database.
func TestGatewayWithoutConfigFolder(t *testing.T) {
	b := builder{}
	b.project("line", "", false)
	b.query("line", "a", "unknown")
	b.view("line", "v", boundTo("b"))
	d := diskOf(nil)
	d.Collections = nil
	list := texts(indexOf(t, b).Check(nil, d))
	require.Len(t, list, 1)
	assert.Contains(t, list[0], `named query "b"`)
}

// Without a gateway, a name counts as missing only if the commit has others of its kind.
func TestUnknownGateway(t *testing.T) {
	b := builder{}
	b.project("line", "base", false)
	b.query("line", "a", "unknown")
	b.view("line", "v", embedded("w"), boundTo("b"))
	b.tags("tag-definition/default", `[{"name": "a", "typeId": "T", "tagType": "UdtInstance"}]`)
	assert.Empty(t, texts(indexOf(t, b).Check(nil, nil)))
	b.project("line", "", false)
	b.config("ignition/database-connection/db", "{}")
	list := texts(indexOf(t, b).Check(nil, nil))
	assert.Len(t, list, 3, "%q", list)
}

func TestKnownFindingsAreCounted(t *testing.T) {
	b := plant(1)
	main := "projects/line-0/" + perspective + "views/Pages/Main/view.json"
	before := indexOf(t, b.with(t, main, "Common/Header", "Gone")).Check(nil, nil).Found
	r := indexOf(t, b.with(t, main, "Common/Header", "Gone").with(t, main, "Parts/Motor", "New")).Check(before, nil)
	assert.Equal(t, 1, r.Known)
	list := texts(r)
	require.Len(t, list, 1)
	assert.Contains(t, list[0], `"New"`)
}

// Update must give the same index, whether it moves from a commit or starts from nothing.
func TestUpdate(t *testing.T) {
	b := plant(2)
	commits := []builder{
		b, b.without(t, "projects/line-1"), b.with(t, "projects/line-0/project.json", "library", "x"),
		b.without(t, core+"tag-type-definition"), renamed(b, "Parts/Motor", "Parts/Drive"), {"projects/a/project.json": "no JSON"}, b,
	}
	x := NewIndex()
	var at commit
	// sequence: each step starts at the last commit
	for i, files := range commits {
		next := newCommit(t, files)
		require.NoError(t, x.Update(at.tree, next.tree, next.read))
		at = next
		want := indexOf(t, files)
		assert.Equal(t, texts(want.Check(nil, diskOf(nil))), texts(x.Check(nil, diskOf(nil))), "step %d", i)
		assert.Equal(t, want, x, "step %d", i)
	}
}

// mistake is a commit with a mistake.
type mistake struct {
	text  string
	files builder
	name  string // that a finding must have
}

// mistakes returns all mistakes of two kinds: a thing is gone or renamed, and one of the places that name it has a typing mistake. The places
// are found by text, independently of the code under test.
func mistakes(t *testing.T, b builder) []mistake {
	t.Helper()
	var all []mistake
	for _, file := range b.paths() {
		thing, dir, name := thingAt(file)
		if thing == "" {
			continue
		}
		var places []string
		for _, other := range b.paths() {
			if !strings.HasPrefix(other, dir+"/") && strings.HasSuffix(other, ".json") && strings.Contains(b[other], `"`+name+`"`) && names(thing, dir, other) {
				places = append(places, other)
			}
		}
		if len(places) == 0 {
			continue
		}
		all = append(all, mistake{fmt.Sprintf("%s %s is gone", thing, name), b.without(t, dir), name})
		for _, place := range places {
			typo := name[:len(name)-1] + "Ω"
			all = append(all, mistake{fmt.Sprintf("%s misspells %s %s", place, thing, name), b.with(t, place, `"`+name+`"`, `"`+typo+`"`), typo})
		}
	}
	return all
}

// thingAt returns the thing that a file defines, and its folder.
func thingAt(file string) (thing, dir, name string) {
	dir, base := path.Split(file)
	dir = strings.TrimSuffix(dir, "/")
	for _, kind := range []struct{ thing, below, base string }{
		{"view", "/" + perspective + "views/", "view.json"}, {"query", "/ignition/named-query/", "query.sql"},
		{"database", "/ignition/database-connection/", "resource.json"}, {"user source", "/ignition/user-source/", "resource.json"},
		{"identity provider", "/ignition/identity-provider/", "resource.json"},
	} {
		if _, name, ok := strings.Cut(dir, kind.below); ok && base == kind.base {
			return kind.thing, dir, name
		}
	}
	if base == "project.json" {
		return "project", dir, path.Base(dir)
	}
	return "", "", ""
}

// names reports whether a file may name a thing. Views and queries of the library can be named in every project, those of another project
// only in that project.
func names(thing, dir, file string) bool {
	project, _, _ := strings.Cut(strings.TrimPrefix(dir, "projects/"), "/")
	switch thing {
	case "view", "query":
		return strings.HasPrefix(file, "projects/") && (project == "library" || strings.HasPrefix(file, "projects/"+project+"/"))
	case "project":
		return strings.HasSuffix(file, "/project.json")
	case "user source":
		return !strings.Contains(file, "/tag-") && !strings.HasSuffix(file, "/security-properties/config.json")
	case "database":
		return !strings.Contains(file, "/identity-") && !strings.HasSuffix(file, "/security-properties/config.json")
	}
	return strings.HasSuffix(file, "/security-properties/config.json")
}

// Of a hundred mistakes, at least 95 are found, and nothing without a mistake.
func TestHundredMistakes(t *testing.T) {
	b := plant(4)
	check := func(t *testing.T, all []mistake, count int) {
		t.Helper()
		random := rand.New(rand.NewPCG(1, 2))
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:min(count, len(all))]
		found := 0
		for _, m := range all { // sequence: a sum
			list := texts(indexOf(t, m.files).Check(nil, diskOf(nil)))
			if slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, `"`+m.name+`"`) }) {
				found++
			} else {
				t.Logf("not found: %s: %q", m.text, list)
			}
		}
		t.Logf("found %d of %d mistakes", found, len(all))
		assert.GreaterOrEqual(t, found*100, len(all)*95)
	}
	t.Run("a plant", func(t *testing.T) {
		all := mistakes(t, b)
		// setup: tags, which name their types and provider in other ways
		for _, provider := range []string{"plc-line-0", "plc-line-1", "plc-line-2", "plc-line-3"} {
			all = append(all,
				mistake{"a provider is gone", b.without(t, core+"tag-provider/"+provider), provider},
				mistake{"types are gone", b.without(t, core+"tag-type-definition/"+provider+"/Drives"), "Drives/Motor"},
				mistake{"a type is misspelled", b.with(t, core+"tag-definition/"+provider+"/Hall/udts.json", "Small/Servo", "Small/Serva"), "Drives/Small/Serva"},
				mistake{"a type is renamed", b.with(t, core+"tag-type-definition/"+provider+"/Drives/udts.json", `"name": "Motor"`, `"name": "Drive"`), "Drives/Motor"})
		}
		require.GreaterOrEqual(t, len(all), 100)
		check(t, all, 100)
	})
	t.Run("a real gateway", func(t *testing.T) {
		root := trees.Gateway83(t)
		tree := builder{}
		for path, text := range trees.Files(t, root) {
			if strings.HasPrefix(path, "projects/") || strings.HasPrefix(path, "config/") {
				tree[path] = text
			}
		}
		x := indexOf(t, tree)
		require.Empty(t, texts(x.Check(nil, nil)))
		require.Empty(t, texts(x.Check(nil, diskOf(nil))))
		// The plant's resources beside the real ones.
		both := maps.Clone(tree)
		for path, text := range b {
			if tree[path] == "" {
				both[path] = text
			}
		}
		require.Empty(t, texts(indexOf(t, both).Check(nil, diskOf(nil))))
		check(t, []mistake{
			{"the database of both collections is gone", tree.without(t, "config/resources/dev/ignition/database-connection/db").without(t, core+"database-connection/db"), "db"},
			{"the provider of tags is gone", tree.without(t, "config/resources/dev/ignition/tag-provider/default").without(t, core+"tag-provider/default"), "default"},
			{"the identity provider is gone", tree.without(t, core+"identity-provider/default"), "default"},
			{"the user source is gone", tree.without(t, core+"user-source/default"), "default"},
			{"a parent is missing", tree.with(t, "projects/ICL/project.json", `"parent": ""`, `"parent": "base"`), "base"},
		}, 5)
	})
}

// A project of Ignition 8.1.
func TestRealProject(t *testing.T) {
	b := builder{}
	for path, text := range trees.Files(t, trees.Project81(t)) { // setup: as a mapping places it
		b["projects/flintium/"+path] = text
	}
	d := diskOf(nil)
	d.Collections = nil
	assert.Empty(t, texts(indexOf(t, b).Check(nil, nil)))
	assert.Empty(t, texts(indexOf(t, b).Check(nil, d)))
}

// The names in very many files are checked only under the policy refuse.
func TestManyFiles(t *testing.T) {
	var k Keeper
	notes, err := k.Check(v1alpha1.ReferencesWarn, Target{Before: plan.Header{Files: maxWarned + 1}, Changes: &plan.Changes{}})
	require.NoError(t, err)
	assert.Empty(t, notes)
	assert.True(t, k.IsNew())
}
