package references

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// file is what a file defines and names.
type file struct {
	id      plan.ID
	defines []Name
	names   []reference
	project *project // of a project.json
	// unread is the scope of UDT types of which the file may define more, because it could not be read to its end; or "".
	unread    string
	typesSize int // of the UDT types in defines, in bytes
}

// reference is a name in a file.
type reference struct {
	Name
	pointer string
}

// project is the content of a project.json.
type project struct {
	parent      string
	inheritable bool
}

// add adds a name, unless it is empty, has a parameter such as {line}, is a placeholder such as <default>, or is over a limit.
func (f *file) add(n Name, pointer string) {
	if n.Name != "" && len(n.Name) <= maxName && !strings.ContainsAny(n.Name, "{}<>") && len(f.names) < maxPerFile {
		f.names = append(f.names, reference{n, pointer})
	}
}

// configName is a property of a config resource that names another one. If onlyIf is set, it counts only if the property onlyIf has the
// value equals.
type configName struct {
	module, typ, property string
	kind                  Kind
	onlyIf, equals        string
}

// configNames are the properties that were seen in real gateways.
var configNames = []configName{
	{module: "ignition", typ: "tag-provider", property: "settings.defaultDatasourceName", kind: Database},
	{module: "com.inductiveautomation.historian", typ: "historian-provider", property: "settings.database", kind: Database, onlyIf: "profile.type", equals: "SqlHistorian"},
	{module: "ignition", typ: "identity-provider", property: "settings.userSource", kind: UserSource, onlyIf: "profile.type", equals: "internal"},
	{module: "ignition", typ: "user-source", property: "profile.failoverProfile", kind: UserSource},
	{module: "ignition", typ: "security-properties", property: "systemAuthProfile", kind: UserSource},
	{module: "ignition", typ: "security-properties", property: "systemIdentityProvider", kind: IdentityProvider},
}

// configTypes are the types of config resources that have a Kind.
var configTypes = map[string]Kind{
	"tag-provider": TagProvider, "database-connection": Database, "identity-provider": IdentityProvider, "user-source": UserSource,
}

const (
	resourceFile = "resource.json"
	configFile   = "config.json"
	viewsFolder  = "com.inductiveautomation.perspective/views/"
	queryFolder  = "ignition/named-query/"
	pagesPath    = "com.inductiveautomation.perspective/page-config/config.json"
)

// extractor reads one file. It is nil for a file that defines and names nothing.
type extractor struct {
	// extract adds what content defines and names. An error means that content was not read to its end. extract is nil if the content does
	// not matter.
	extract func(f *file, content []byte) error
	defines []Name // by the path
	names   []Name // by the path
	typesOf string // the tag provider whose types the content defines, or ""
}

// extractorOf returns the extractor of the file at path, or nil.
func extractorOf(path string) *extractor {
	if rest, ok := strings.CutPrefix(path, "projects/"); ok {
		return projectExtractor(rest)
	}
	if rest, ok := strings.CutPrefix(path, "config/resources/"); ok {
		return configExtractor(rest)
	}
	return nil
}

func projectExtractor(path string) *extractor {
	name, rest, _ := strings.Cut(path, "/")
	if rest == "project.json" {
		return &extractor{extract: func(f *file, content []byte) error {
			p := parseProject(content)
			f.project = &p
			return nil
		}}
	}
	if rest == pagesPath {
		return &extractor{extract: func(f *file, content []byte) error { return walk(content, &pagesVisitor{f, name}) }}
	}
	if path, ok := inFolder(rest, viewsFolder, "view.json"); ok {
		return &extractor{
			extract: func(f *file, content []byte) error { return f.extractView(name, content) },
			defines: []Name{{View, name, path}},
		}
	}
	if path, ok := inFolder(rest, queryFolder, resourceFile); ok {
		return &extractor{
			extract: func(f *file, content []byte) error {
				if db := gjson.GetBytes(content, "attributes.database"); db.Type == gjson.String {
					f.add(Name{Database, "", db.Str}, "/attributes/database")
				}
				return nil
			},
			defines: []Name{{NamedQuery, name, path}},
		}
	}
	return nil
}

// inFolder returns the folder of a file below dir, if the file has the name.
func inFolder(path, dir, name string) (string, bool) {
	rest, ok := strings.CutPrefix(path, dir)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "/"+name)
}

// parseProject reads a project.json. If it is not JSON, the sync refuses it later.
func parseProject(content []byte) project {
	parent := gjson.GetBytes(content, "parent")
	p := project{inheritable: gjson.GetBytes(content, "inheritable").Bool()}
	if parent.Type == gjson.String && len(parent.Str) <= maxName {
		p.parent = parent.Str
	}
	return p
}

func configExtractor(path string) *extractor {
	part := strings.SplitN(path, "/", 4) // collection, module, type, the rest
	if len(part) < 4 {
		return nil
	}
	module, typ := part[1], part[2]
	name, base := relpath.Parent(part[3]), relpath.Base(part[3])
	if module == "ignition" && (typ == "tag-definition" || typ == "tag-type-definition") {
		return tagsExtractor(typ == "tag-type-definition", name, base)
	}
	if base == resourceFile && module == "ignition" && name != "" && configTypes[typ] != "" {
		return &extractor{defines: []Name{{configTypes[typ], "", name}}}
	}
	of := func(c configName) bool { return c.module == module && c.typ == typ }
	if base != configFile || !slices.ContainsFunc(configNames, of) {
		return nil
	}
	return &extractor{extract: func(f *file, content []byte) error {
		for _, c := range configNames {
			value := gjson.GetBytes(content, c.property)
			if of(c) && value.Type == gjson.String && (c.onlyIf == "" || gjson.GetBytes(content, c.onlyIf).Str == c.equals) {
				f.add(Name{c.kind, "", value.Str}, "/"+strings.ReplaceAll(c.property, ".", "/"))
			}
		}
		return nil
	}}
}

// tagsExtractor returns the extractor of a file of tags or types, or nil. dir starts with the name of the provider.
func tagsExtractor(types bool, dir, base string) *extractor {
	provider, folder, _ := strings.Cut(dir, "/")
	x := &extractor{names: []Name{{TagProvider, "", provider}}}
	if types {
		x.typesOf = provider
	}
	switch {
	case provider == "" || managedProvider(provider):
		return nil
	case base == "udts.json" || base == "tags.json":
		x.extract = func(f *file, content []byte) error { return f.extractTags(provider, folder, types, content) }
	case base != "unary-resource.json":
		return nil
	}
	return x
}

// managedProvider reports whether a gateway or a module makes a tag provider and its types by itself.
func managedProvider(name string) bool {
	return slices.Contains([]string{"System", "MQTT Engine", "MQTT Transmission", "MQTT Distributor"}, name)
}

// read returns what the file at a path defines and names. ok is false if the content is not known.
func (x *extractor) read(id plan.ID, content []byte, ok bool) *file {
	f := &file{id: id, defines: x.defines}
	for _, n := range x.names {
		f.add(n, "")
	}
	if x.extract != nil && (!ok || x.extract(f, bytes.TrimPrefix(content, []byte("\uFEFF"))) != nil) {
		f.unread = x.typesOf
	}
	return f
}
