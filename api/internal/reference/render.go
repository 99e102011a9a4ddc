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
	//go:embed configsync-minimal.yaml
	configMinimal string
	//go:embed configsync-full.yaml
	configFull string
)

// kind is what a page is about.
type kind struct {
	name, intro, minimal, full, unknown string
	// annotations starts the comments of the constants that the page lists.
	annotations string
}

var (
	gatewaySync = kind{"GatewaySync", intro, minimal, full, unknown, "Annotations of a "}
	configSync  = kind{"ConfigSync", configIntro, configMinimal, configFull, "", "Annotations of objects "}
)

const configIntro = `<!-- Generated from api/v1alpha1. DO NOT EDIT: change the comments there, and run go generate ./api/... -->

# ConfigSync

A ConfigSync says which objects of Kubernetes, from which commit of git, ` + "[`stoker config`](../how-to/config.md)" + ` applies with the rights
of its caller, or ` + "[`stoker config run`](../how-to/config.md#keep-it-at-git)" + ` with those of a ServiceAccount. Group ` + "`stoker.io`" + `,
version ` + "`v1alpha1`" + `, short name ` + "`csync`" + `; write ` + "`configsyncs.stoker.io`" + ` if the cluster has a kind of that name from another vendor.
` + "`kubectl explain configsync.spec`" + ` shows the same text.

Durations are a number and a unit, such as ` + "`30s`, `5m` or `1h30m`" + `. A boolean without a default is false. Secrets and ConfigMaps are
in the ConfigSync's own namespace. The annotations ` + "`stoker.io/paused: \"true\"`" + ` and ` + "`stoker.io/confirm-deletion: COMMIT`" + `, and
those that [request a version](../how-to/config.md#request-a-version), mean the same as on a [GatewaySync](gatewaysync.md).

`

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
			p.count(typeName(f.typ), f.name)
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

func (p *page) annotations(start string) {
	for _, g := range p.api.groups {
		if !strings.HasPrefix(g.doc, start) {
			continue
		}
		title, rest, _ := strings.Cut(g.doc, ".")
		switch {
		case strings.Contains(rest, "older prefix"):
			rest = " Stoker also accepts them with the prefix `ignition-sync.io/`."
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
