package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// The texts of the pages, and their examples.
var (
	//go:embed gatewaysync-intro.txt
	intro string
	//go:embed configsync-intro.txt
	configIntro string
	//go:embed unknown-fields.txt
	unknown string
	//go:embed minimal.yaml
	minimal string
	//go:embed full.yaml
	full string
	//go:embed configsync-minimal.yaml
	configMinimal string
	//go:embed configsync-full.yaml
	configFull string
)

// kind describes the page of a kind.
type kind struct {
	name, intro, minimal, full, unknown string
	// annotations is the beginning of the comments of the constants that the page lists.
	annotations string
}

var (
	gatewaySync = kind{"GatewaySync", intro, minimal, full, unknown, "Annotations of a "}
	configSync  = kind{"ConfigSync", configIntro, configMinimal, configFull, "", "Annotations of objects "}
)

// page is the text of a page while it is written.
type page struct {
	bytes.Buffer
	api  *source
	uses map[string][]string // from a struct type to the paths of the fields that have it
	// shared are the types of more than one field. Their sections come last.
	shared []string
}

// render returns the page of a kind.
func render(api *source, k kind) ([]byte, error) {
	p := &page{api: api, uses: map[string][]string{}}
	p.WriteString(k.intro)
	fmt.Fprintf(p, "## The smallest useful one\n\n```yaml\n%s```\n\n## One with nearly everything\n\n```yaml\n%s```\n\n", k.minimal, k.full)
	p.WriteString(k.unknown)
	root, ok := api.structs[k.name]
	if !ok {
		return nil, fmt.Errorf("no type %s", k.name)
	}
	for _, f := range root.fields {
		if f.name != "metadata" {
			p.countUses(typeName(f.typ), f.name)
		}
	}
	for _, f := range root.fields {
		if f.name != "metadata" {
			p.section(typeName(f.typ), f.name)
		}
	}
	p.sharedTypes()
	p.annotations(k.annotations)
	return append(bytes.TrimRight(p.Bytes(), "\n"), '\n'), nil
}

// countUses records where each struct type is used, so that a type that is used more than once gets one section.
func (p *page) countUses(name, path string) {
	st, ok := p.api.structs[name]
	if !ok {
		return
	}
	p.uses[name] = append(p.uses[name], path)
	if len(p.uses[name]) > 1 {
		return
	}
	for _, name := range st.inline {
		p.countUses(name, path)
	}
	for _, f := range st.fields {
		p.countUses(typeName(f.typ), path+"."+f.name+suffix(f.typ))
	}
}

// section writes the section of a struct type, followed by those of its fields.
func (p *page) section(name, path string) {
	st, ok := p.api.structs[name]
	switch {
	case !ok:
		return
	case len(p.uses[name]) > 1:
		if !slices.Contains(p.shared, name) {
			p.shared = append(p.shared, name)
		}
		return
	}
	fmt.Fprintf(p, "%s `%s`\n\n%s", strings.Repeat("#", min(2+strings.Count(path, "."), 4)), path, prose(st.doc, name))
	for _, name := range st.inline {
		if len(p.uses[name]) > 1 {
			fmt.Fprintf(p, " It also has the fields of %s.", p.named(name))
			p.section(name, path)
		}
	}
	p.WriteString("\n\n")
	p.table(st)
	for _, f := range p.fields(st) {
		p.section(typeName(f.typ), path+"."+f.name+suffix(f.typ))
	}
}

// fields returns the fields of a struct type, with those of embedded types that have no section of their own.
func (p *page) fields(st structType) []structField {
	fields := slices.Clone(st.fields)
	for _, name := range st.inline {
		if len(p.uses[name]) == 1 {
			fields = append(fields, p.fields(p.api.structs[name])...)
		}
	}
	return fields
}

// sharedTypes writes the sections of shared types.
func (p *page) sharedTypes() {
	for _, name := range p.shared {
		st := p.api.structs[name]
		fmt.Fprintf(p, "## %s\n\n%s In `%s`.\n\n", name, prose(st.doc, name), strings.Join(p.uses[name], "`, `"))
		p.table(st)
	}
}

func (p *page) table(st structType) {
	p.WriteString("| field | type | default | meaning |\n|---|---|---|---|\n")
	for _, f := range p.fields(st) {
		fmt.Fprintf(p, "| `%s` | %s | %s | %s |\n", f.name, p.typ(f), initial(f), cell(f.doc))
	}
	p.WriteString("\n")
}

func (p *page) annotations(start string) {
	for _, g := range p.api.groups {
		if !strings.HasPrefix(g.doc, start) {
			continue
		}
		title, rest, _ := strings.Cut(g.doc, ".")
		switch {
		case strings.Contains(rest, "older prefix"):
			rest = " Stoker also accepts them with the prefix `" + gatewaypod.OlderPrefix + "`."
		case start == configSync.annotations:
			rest = " `stoker config` writes the first two. Manifests may carry the others."
		default:
			rest = " A later change of the spec wins over a requested ref, so you never have to remove these annotations."
		}
		fmt.Fprintf(p, "## %s\n\n%s\n\n| annotation | meaning |\n|---|---|\n", title, strings.TrimSpace(rest))
		for _, c := range g.values {
			fmt.Fprintf(p, "| `%s` | %s |\n", c.value, sentence(cell(c.doc)))
		}
		p.WriteString("\n")
	}
}

// typ describes the type of a field and its limits.
func (p *page) typ(f structField) string {
	out := p.expr(f.typ)
	minimum, maximum := f.markers["kubebuilder:validation:Minimum"], f.markers["kubebuilder:validation:Maximum"]
	enum := f.markers["kubebuilder:validation:Enum"]
	switch {
	case enum != "":
		out = "`" + strings.ReplaceAll(enum, ";", "`, `") + "`"
	case minimum != "" && maximum != "":
		out += ", " + minimum + " to " + maximum
	case minimum != "":
		out += ", at least " + minimum
	}
	for _, limit := range [][2]string{{"MaxItems", "items"}, {"MaxProperties", "entries"}, {"MaxLength", "characters"}} {
		if n := f.markers["kubebuilder:validation:"+limit[0]]; n != "" {
			out += ", at most " + n + " " + limit[1]
		}
	}
	return out
}

func (p *page) expr(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return p.expr(t.X)
	case *ast.ArrayType:
		return "list of " + p.expr(t.Elt)
	case *ast.MapType:
		return "map of " + p.expr(t.Value)
	case *ast.SelectorExpr:
		return external[t.Sel.Name]
	case *ast.Ident:
		return p.named(t.Name)
	}
	return "object"
}

// external describes the Kubernetes types of fields.
var external = map[string]string{
	"Time":                 "time",
	"Condition":            "condition",
	"PullPolicy":           "string",
	"ResourceRequirements": "as of a container",
}

func (p *page) named(name string) string {
	switch {
	case p.api.enums[name] != nil:
		return "`" + strings.Join(p.api.enums[name], "`, `") + "`"
	case name == "bool":
		return "boolean"
	case strings.HasPrefix(name, "int"):
		return "integer"
	case name == "string" || p.api.stringTypes[name]:
		return "string"
	case len(p.uses[name]) > 1:
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	}
	return "object"
}
