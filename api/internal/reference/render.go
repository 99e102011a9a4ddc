package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

var (
	//go:embed minimal.yaml
	minimal string
	//go:embed full.yaml
	full string
)

const intro = `<!-- Generated from api/v1alpha1. DO NOT EDIT: change the comments there, and run go generate ./api/... -->

# GatewaySync

A GatewaySync says from which git repository, at which ref, with which mappings a set of Ignition gateways is kept. In a
cluster, pods name it with an annotation; the standalone agent reads the same YAML from a file. Group ` + "`stoker.io`" + `, version
` + "`v1alpha1`" + `, short names ` + "`gs`" + ` and ` + "`gsync`" + `. ` + "`kubectl explain gatewaysync.spec`" + ` shows the same text.

Durations are a number and a unit, such as ` + "`30s`" + `, ` + "`5m`" + ` or ` + "`1h30m`" + `. A
boolean without a default is false. Secrets are in the GatewaySync's own namespace.

`

const unknown = `## Unknown fields

Spell fields exactly as here. The API server drops a field that it does not know, such as ` + "`conflictpolicy: hold`" + `, unless the client
asks for strict validation. Then the default counts, here ` + "`gitWins`" + `, and neither an agent nor the status can tell you.

| tool | an unknown field is |
|---|---|
| ` + "`kubectl create` and `kubectl apply`" + `, and Argo CD, unless you turn validation off | refused, and named in the error |
| server-side apply: Flux, Argo CD with ` + "`ServerSideApply=true`" + ` | refused, and named in the error |
| Helm 3, and other clients that do not send ` + "`fieldValidation=Strict`" + ` | dropped, with a warning at most |
| ` + "`agent --file`, `stoker render`, `stoker preflight`" + ` | refused, and named in the error; an agent that runs keeps the last good file |

` + "`kubectl get gs plant -o yaml`" + ` shows the fields that the API server has kept.

`

// page collects the reference.
type page struct {
	bytes.Buffer
	api  *source
	uses map[string][]string // struct type → the fields that have it
	// shared are the types that several fields have. Their sections come last.
	shared []string
}

// render makes the whole reference.
func render(api *source) ([]byte, error) {
	p := &page{api: api, uses: map[string][]string{}}
	p.WriteString(intro)
	fmt.Fprintf(p, "## The smallest useful one\n\n```yaml\n%s```\n\n## One with nearly everything\n\n```yaml\n%s```\n\n", minimal, full)
	p.WriteString(unknown)
	root, ok := api.structs["GatewaySync"]
	if !ok {
		return nil, fmt.Errorf("no type GatewaySync")
	}
	for _, f := range root.fields {
		if f.name != "metadata" {
			p.count(typeName(f.typ), f.name)
		}
	}
	for _, f := range root.fields {
		if f.name != "metadata" {
			p.section(typeName(f.typ), f.name)
		}
	}
	p.sharedTypes()
	p.annotations()
	return append(bytes.TrimRight(p.Bytes(), "\n"), '\n'), nil
}

// count finds out where each struct type is used, so that one that is used in several places gets one section.
func (p *page) count(name, path string) {
	st, ok := p.api.structs[name]
	if !ok {
		return
	}
	p.uses[name] = append(p.uses[name], path)
	if len(p.uses[name]) > 1 {
		return
	}
	for _, f := range st.fields {
		p.count(typeName(f.typ), path+"."+f.name+suffix(f.typ))
	}
}

// section writes the table of a struct type, and then those of its fields.
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
	fmt.Fprintf(p, "%s `%s`\n\n%s\n\n", strings.Repeat("#", min(2+strings.Count(path, "."), 4)), path, prose(st.doc, name))
	p.table(st)
	for _, f := range st.fields {
		p.section(typeName(f.typ), path+"."+f.name+suffix(f.typ))
	}
}

// sharedTypes writes the sections that were put off.
func (p *page) sharedTypes() {
	for _, name := range p.shared {
		st := p.api.structs[name]
		fmt.Fprintf(p, "## %s\n\n%s In `%s`.\n\n", name, prose(st.doc, name), strings.Join(p.uses[name], "`, `"))
		p.table(st)
	}
}

func (p *page) table(st structType) {
	p.WriteString("| field | type | default | meaning |\n|---|---|---|---|\n")
	for _, f := range st.fields {
		fmt.Fprintf(p, "| `%s` | %s | %s | %s |\n", f.name, p.typ(f), initial(f), cell(f.doc))
	}
	p.WriteString("\n")
}

func (p *page) annotations() {
	for _, g := range p.api.groups {
		if !strings.HasPrefix(g.doc, "Annotations of a ") {
			continue
		}
		title, rest, _ := strings.Cut(g.doc, ".")
		if strings.Contains(rest, "older prefix") {
			rest = " The prefix `ignition-sync.io/` is read as the same."
		} else {
			rest = " A later change of the spec wins over a request. You never have to remove them."
		}
		fmt.Fprintf(p, "## %s\n\n%s\n\n| annotation | meaning |\n|---|---|\n", title, strings.TrimSpace(rest))
		for _, c := range g.values {
			fmt.Fprintf(p, "| `%s` | %s |\n", c.value, sentence(cell(c.doc)))
		}
		p.WriteString("\n")
	}
}

// typ describes a field's type and what bounds it.
func (p *page) typ(f structField) string {
	out := p.expr(f.typ)
	low, high := f.markers["kubebuilder:validation:Minimum"], f.markers["kubebuilder:validation:Maximum"]
	enum := f.markers["kubebuilder:validation:Enum"]
	switch {
	case enum != "":
		out = "`" + strings.ReplaceAll(enum, ";", "`, `") + "`"
	case low != "" && high != "":
		out += ", " + low + " to " + high
	case low != "":
		out += ", at least " + low
	}
	for _, bound := range [][2]string{{"MaxItems", "items"}, {"MaxProperties", "entries"}, {"MaxLength", "characters"}} {
		if n := f.markers["kubebuilder:validation:"+bound[0]]; n != "" {
			out += ", at most " + n + " " + bound[1]
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

// external are the types of Kubernetes that fields have.
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
	case name == "string" || p.api.strings[name]:
		return "string"
	case len(p.uses[name]) > 1:
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	}
	return "object"
}
