// Package createtest has trees of repositories in the shapes that people use, for tests of stoker create.
package createtest

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"stoker.io/stoker/test/gitserver"
)

// Tree is the tree of a repository.
type Tree struct {
	Name  string
	Edits []gitserver.Edit
	// Gateways are gateways that the tree is for, NAME=PROFILE. Without them a template has no value.
	Gateways []string
}

// Contents of files.
const (
	resourceJSON = `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`
	embedded     = `{"password":{"type":"Embedded","data":{"ciphertext":"x","encrypted_key":"x","iv":"x","protected":"x","tag":"x"}}}`
	pointer      = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)

type files map[string]string

func (f files) edit() gitserver.Edit { return gitserver.Files(f) }

// with merges sets of files.
func with(list ...files) files {
	all := files{}
	for _, f := range list {
		maps.Copy(all, f)
	}
	return all
}

// project has the files of a project.
func project(dir string, inheritable bool) files {
	return files{
		dir + "/project.json":                           fmt.Sprintf(`{"title":"","description":"","parent":"","enabled":true,"inheritable":%v}`, inheritable),
		dir + "/ignition/script-python/a/code.py":       "pass\n",
		dir + "/ignition/script-python/a/resource.json": strings.ReplaceAll(resourceJSON, "config.json", "code.py"),
	}
}

// collection has the files of a collection of configuration, with a database connection of a name.
func collection(dir, parent, connection string) files {
	at := dir + "/ignition/database-connection/" + connection
	return files{
		dir + "/config-mode.json": fmt.Sprintf(`{"title":"","description":"","enabled":true,"inheritable":true,"parent":%q}`, parent),
		at + "/config.json":       `{"connectURL":"jdbc:x"}`,
		at + "/resource.json":     resourceJSON,
	}
}

// named has the system properties of a gateway.
func named(collection, name string) files {
	at := collection + "/ignition/system-properties"
	return files{at + "/config.json": fmt.Sprintf(`{"systemName":%q}`, name), at + "/resource.json": resourceJSON}
}

// sites has a gateway for each name.
func sites(parent string, names ...string) files {
	all := files{}
	for _, name := range names {
		at := path.Join(parent, name)
		all = with(all, project(at+"/projects/"+name, false), collection(at+"/config/resources/core", "external", "db"))
	}
	return all
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("line-%02d", i))
	}
	return names
}

// Trees returns the trees. GatewaySyncs of all of them pass every check.
func Trees() []Tree {
	gateways := with(sites("gateways", "north", "south", "west"), project("shared/projects/lib", true))
	systems := sites("plants", "alpha", "beta", "gamma")
	for _, name := range []string{"alpha", "beta", "gamma"} {
		systems = with(systems, named("plants/"+name+"/config/resources/core", name))
	}
	strange := files{}
	for _, name := range []string{"yes", "Line 1: #2", "- dash", "it's", `say "hi"`, "[a]*{b}", "ünï", "null", "007", "tab\there", "new\nkind: Secret", "{{.Vars.x}}"} {
		strange = with(strange, project("odd/"+name+"/projects/p", false))
	}
	return []Tree{
		{Name: "data directory", Edits: []gitserver.Edit{with(project("projects/press", false), collection("config/resources/core", "external", "db"),
			files{
				"config/resources/external/config-mode.json":        `{"parent":"system"}`,
				"config/resources/local/config-mode.json":           `{"parent":"core"}`,
				"config/resources/local/ignition/x/config.json":     `{}`,
				"config/ignition/keys/root.json":                    `{}`,
				"config/ignition/tags/valueStore.idb":               "x",
				"config/local/ignition/metro-keystore/keystore.pfx": "x",
				"projects/.resources/0123":                          "x",
				"db/config.idb":                                     "x", "var/ignition/x": "x", "gateway.xml": "<x/>", "ignition.conf": "x", "modules.json": "{}",
				".gitignore": "var/\n", "config/.gitignore": "x\n", "README.md": "x",
			}).edit()}},
		{Name: "projects in the root", Edits: []gitserver.Edit{with(project("Press", false), project("Library", true), files{"README.md": "x"}).edit()}},
		{Name: "projects in the root and other folders", Edits: []gitserver.Edit{with(project("Press", false), project("Library", true), files{"docs/a.md": "x"}).edit()}},
		{Name: "root is a project", Edits: []gitserver.Edit{with(files{
			"project.json": `{"title":"Press","enabled":true}`, "ignition/script-python/a/code.py": "", "ignition/script-python/a/resource.json": resourceJSON,
			"LICENSE": "x", "docs/a.md": "x",
		}).edit()}},
		{Name: "root is a project among many files", Edits: []gitserver.Edit{with(files{
			"project.json": `{"title":"Press","enabled":true}`, "ignition/script-python/a/code.py": "", "ignition/script-python/a/resource.json": resourceJSON,
			"a": "", "b": "", "c": "", "d": "", "e": "", "f": "", "g": "", "h": "", "i": "",
		}).edit()}},
		{Name: "two services", Edits: []gitserver.Edit{with(sites("services", "area", "site"), files{"docs/a.md": "x"}).edit()}},
		{Name: "shared and sites", Edits: []gitserver.Edit{with(sites("sites", "North Plant", "South Plant"), project("shared/projects/lib", true),
			collection("shared/config/resources/external", "system", "mes")).edit()}},
		{Name: "folders of gateways", Edits: []gitserver.Edit{gateways.edit()}, Gateways: []string{"north=default", "south=default"}},
		{Name: "folders with the system name", Edits: []gitserver.Edit{systems.edit()}, Gateways: []string{"alpha=default"}},
		{Name: "seventy lines", Edits: []gitserver.Edit{sites("lines", numbered(70)...).edit()}, Gateways: []string{"line-42=default"}},
		{Name: "deployment modes", Edits: []gitserver.Edit{with(collection("config/resources/core", "external", "db"), collection("config/resources/dev", "core", "db"),
			collection("config/resources/prod", "core", "db"), project("projects/press", false)).edit()}},
		{Name: "collections without resources", Edits: []gitserver.Edit{with(collection("gateway/core", "external", "db"), collection("gateway/dev", "core", "db"), project("gateway/projects/press", false)).edit()}},
		{Name: "resources in the root", Edits: []gitserver.Edit{collection("resources/core", "external", "db").edit()}},
		{Name: "projects for all, configuration for each", Edits: []gitserver.Edit{with(project("projects/press", false), collection("sites/a/config/resources/core", "external", "db"),
			collection("sites/b/config/resources/core", "external", "db")).edit()}},
		{Name: "library without a telling name", Edits: []gitserver.Edit{with(sites("", "mixer", "filler"), project("foundation/projects/lib", true)).edit()}},
		{Name: "shared within a plant", Edits: []gitserver.Edit{with(sites("plants/north", "mixer", "filler"), sites("plants/south", "mixer"), project("plants/north/shared/projects/lib", true),
			project("common/projects/base", true)).edit()}},
		{Name: "data directories", Edits: []gitserver.Edit{with(sites("north", "data"), sites("south", "data"), project("shared/data/projects/lib", true)).edit()}},
		{Name: "data directories of gateways", Edits: []gitserver.Edit{with(sites("gateways/a", "data"), sites("gateways/b", "data"), sites("gateways/c", "data")).edit()}, Gateways: []string{"a=default"}},
		{Name: "kind and its gateways", Edits: []gitserver.Edit{with(project("line/projects/operate", false), collection("line/config/resources/core", "external", "db"), named("line/config/resources/core", "x"),
			collection("lines/a/config/resources/core", "external", "a"), collection("lines/b/config/resources/core", "external", "b")).edit()}, Gateways: []string{"a=default"}},
		{Name: "generated resources", Edits: []gitserver.Edit{with(collection("config/resources/core", "external", "db"), files{
			"config/resources/core/ignition/quickstart/config.json":                      "{}",
			"config/resources/core/ignition/tag-definition/MQTT Engine/tags.json":        "[]",
			"config/resources/core/com.inductiveautomation.opcua/one-time/x/config.json": "{}",
		}).edit()}},
		{Name: "links and submodules", Edits: []gitserver.Edit{project("projects/press", false).edit(), gitserver.Symlink("projects/[lib]", "../shared"),
			gitserver.Submodule("projects/module", "0123456789012345678901234567890123456789"),
			gitserver.Symlink("config", "elsewhere/config"), gitserver.Submodule("shared", "0123456789012345678901234567890123456789")}},
		{Name: "secrets", Edits: []gitserver.Edit{with(collection("config/resources/core", "external", "db"), files{
			"config/resources/core/ignition/database-connection/x/config.json":   embedded,
			"config/resources/core/ignition/database-connection/x/resource.json": resourceJSON,
			"projects/p/project.json": `{"title":"p"}`, "projects/p/ignition/x/server.pfx": "x",
		}).edit()}},
		{Name: "two writers", Edits: []gitserver.Edit{with(project("shared/projects/lib", true), sites("services", "a"), project("services/a/projects/lib", true),
			files{"services/a/projects/lib/ignition/script-python/a/code.py": "return\n"}).edit()}},
		{Name: "strange names", Edits: []gitserver.Edit{strange.edit()}},
		{Name: "files of other tools", Edits: []gitserver.Edit{with(project("projects/press", false), files{
			"web/project.json": `{"name":"web","sourceRoot":"src","targets":{}}`, "web/src/main.js": "", "projects/.editorconfig": "x", "projects/.vscode/settings.json": "{}",
		}).edit()}},
	}
}

// LFS returns a tree with a pointer of Git LFS, which agents refuse.
func LFS() Tree {
	return Tree{Name: "LFS", Edits: []gitserver.Edit{with(project("projects/press", false), files{
		".gitattributes": "*.png filter=lfs diff=lfs merge=lfs -text\n", "projects/press/com.x.y/images/a.png": pointer, "projects/press/com.x.y/images/b.png": "real",
	}).edit()}}
}
